"""Tokenizers of GGUF files: ids beside those of llama.cpp and transformers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse.text.tokenization.changes import make_tokenizer
from packhorse_weights import CheckpointError
from packhorse_weights.formats.gguf.file import GgufFile, read_gguf
from packhorse_weights.formats.gguf.tokenizer import read_tokenizer
from packhorse_weights.text import read_text_config
from tokenizer_texts import CHATS, TEXTS

tokenizers = pytest.importorskip("tokenizers")

FOLDER = GOLDEN / "gguf"
EXPECTED = json.loads((GOLDEN / "gguf.json").read_text())
ALL = [*TEXTS, *CHATS]
# Qwen's tokenizer composes characters first (NFC), which llama.cpp leaves out.
DECOMPOSED = [text for text in ALL if "e\u0301" in text]
# transformers does not look for tokens that are user-defined in these files, which their folders
# have as added ones.
USER_DEFINED = [text for text in ALL if "<tag>" in text]
# transformers does not take digits apart, whatever the file says of the words.
OTHER_DIGITS = [text for text in ALL if "\u00bd" in text]


def changed(name: str, keys: dict[str, Any]) -> GgufFile:
    file = read_gguf(FOLDER / f"{name}.gguf")
    metadata = {key: value for key, value in file.metadata.items() if key not in keys}
    keys = {key: value for key, value in keys.items() if value is not None}
    return GgufFile(file.path, 3, {**metadata, **keys}, file.tensors)


def built(file: GgufFile) -> Any:
    found = read_tokenizer(file)
    assert found is not None
    return tokenizers.Tokenizer.from_str(json.dumps(found.tokenizer))


def check(tokenizer: Any, expected: list[list[int]], but: list[str], special: bool) -> None:
    for text, ids in zip(ALL, expected, strict=True):
        if text not in but:
            assert tokenizer.encode(text, add_special_tokens=special).ids == ids, text


@pytest.mark.parametrize("name", [name for name in EXPECTED["llama.cpp"] if name != "smollm2"])
def test_fields_make_the_tokenizer_that_their_json_makes(name: str) -> None:
    config = read_text_config(FOLDER / f"{name}.gguf")
    assert config.tokenizer is not None
    made, expected = (
        make_tokenizer(fields, config.settings, ends=config.special_tokens)
        for fields in (config.tokenizer, json.dumps(config.tokenizer).encode())
    )
    assert made.to_str() == expected.to_str()
    for text in ALL:
        assert made.encode(text).ids == expected.encode(text).ids


def exceptions(name: str) -> list[str]:
    return DECOMPOSED if name.startswith("qwen") else []


@pytest.mark.parametrize("name", [name for name in EXPECTED["llama.cpp"] if name != "smollm2"])
def test_ids_as_llama_cpp(name: str) -> None:
    tokenizer = built(read_gguf(FOLDER / f"{name}.gguf"))
    check(tokenizer, EXPECTED["llama.cpp"][name], exceptions(name), special=True)


@pytest.mark.parametrize("name", [name for name in EXPECTED["transformers"] if name != "smollm2"])
def test_ids_as_transformers(name: str) -> None:
    tokenizer = built(read_gguf(FOLDER / f"{name}.gguf"))
    check(tokenizer, EXPECTED["transformers"][name], USER_DEFINED, special=False)


@pytest.mark.parametrize("words", EXPECTED["words"])
def test_words_as_llama_cpp(words: str) -> None:
    tokenizer = built(changed("qwen2", {"tokenizer.ggml.pre": words}))
    check(tokenizer, EXPECTED["words"][words], exceptions(words), special=True)


def test_ids_of_the_real_model(smollm2: Path) -> None:
    tokenizer = TextTokenizer.load(smollm2)
    ids = tokenizer.encode(ALL, None).ids
    assert [row.tolist() for row in ids] == EXPECTED["llama.cpp"]["smollm2"]
    for text, row, theirs in zip(ALL, ids, EXPECTED["transformers"]["smollm2"], strict=True):
        assert row.tolist() == theirs or text in OTHER_DIGITS
    for text, row in zip(ALL, ids, strict=True):
        assert tokenizer.decode(row.tolist(), skip_special=False) == text
    for prompt, (prompt_ids, _) in EXPECTED["greedy"].items():
        assert tokenizer.plain_ids(prompt).tolist() == prompt_ids
    settings = read_tokenizer(read_gguf(smollm2))
    assert settings is not None
    assert settings.settings["chat_template"].startswith("{% for message in messages %}")
    assert settings.settings["bos_token"] == "<|im_start|>"


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "qwen3"])
def test_decoded_is_what_was_encoded(name: str) -> None:
    tokenizer = TextTokenizer.load(FOLDER / f"{name}.gguf")
    for text in ("the cat sat on the mat", " a  b", "naïve 漢字 😀\n\tx", "mat <tag> cat"):
        ids = tokenizer.plain_ids(text).tolist()
        decoded = tokenizer.decode(ids, skip_special=True)
        if name == "llama":  # puts a space before a text, and before what follows a token
            decoded, text = decoded.replace("<tag>  ", "<tag> "), text
        assert decoded == text


def test_what_stands_around_a_text() -> None:
    keys = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    file = changed("gpt2", keys)
    bos, eos = (file.metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos"))
    ids = built(file).encode("a", "b").ids
    assert (ids[0], ids[-1], ids.count(bos), ids.count(eos)) == (bos, eos, 2, 2)
    # Llama 3 begins a text with bos where no key says so.
    assert built(changed("gpt2", {"tokenizer.ggml.pre": "llama-bpe"})).encode("a").ids[0] == bos
    assert built(changed("llama", {"tokenizer.ggml.add_bos_token": False})).encode("").ids == []


def test_merges_count_but_for_whole_words() -> None:
    """Llama 3 takes a word that is a token as it is."""
    tokens = [*read_gguf(FOLDER / "qwen2.gguf").metadata["tokenizer.ggml.tokens"][:-1], "xyzzy"]
    for words, expected in (("llama-bpe", 1), ("qwen2", 5)):
        keys = {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": None,
            "tokenizer.ggml.pre": words,
        }
        assert len(built(changed("qwen2", keys)).encode("xyzzy", add_special_tokens=False)) == (
            expected
        )


def test_stop_ids() -> None:
    """Tokens that the file names end an answer, and control tokens that do so by their name."""
    file = changed("qwen2", {"tokenizer.ggml.eot_token_id": 5})
    found = read_tokenizer(file)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert found is not None
    assert found.stop_ids == sorted({5, tokens.index("<|im_end|>"), tokens.index("<|endoftext|>")})


def test_tokens_that_end_a_turn_are_control_tokens() -> None:
    """Tokens that a file calls NORMAL are control tokens if they end a turn: ids as llama.cpp's."""
    file = read_gguf(FOLDER / "qwen2.gguf")
    tokens = file.metadata["tokenizer.ggml.tokens"]
    file = changed("qwen2", {"tokenizer.ggml.token_type": np.ones(len(tokens), np.int32)})
    expected = json.loads((GOLDEN / "gguf_control.json").read_text())["ids"]
    tokenizer = built(file)
    check(tokenizer, expected, [*DECOMPOSED, *USER_DEFINED], special=True)
    ids = tokenizer.encode("<|im_end|>").ids
    assert ids == [tokens.index("<|im_end|>")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == ""


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (["<|eot_id|>", "<end_of_turn>", "<eos>", "[EOS]"], 4),
        (["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"], 3),
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], 0),
        (["<|end|>", "<|return|>"], 2),
        (["<|return|>", "<|call|>", "<|end|>"], 2),
        (["<|end|>", "<|flush|>", "<|calls|>"], 2),
    ],
)
def test_control_tokens_by_their_text(texts: list[str], ends: int) -> None:
    """Control tokens are known by their text, whatever type they have, as in llama.cpp."""
    known = read_gguf(FOLDER / "qwen2.gguf").metadata["tokenizer.ggml.tokens"]
    tokens = [*known, *texts, "<stop>"]
    first = len(known)
    keys: dict[str, Any] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.ones(len(tokens), np.int32),
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }
    found = read_tokenizer(changed("qwen2", keys))
    assert found is not None
    special = {token["id"] for token in found.tokenizer["added_tokens"] if token["special"]}
    stops = [number for number in found.stop_ids if number >= first]
    assert len(stops) == ends + 1
    assert stops[-1] == len(tokens) - 1
    harmless = {first + texts.index("<|end|>")} if ends < len(texts) and "<|end|>" in texts else {}
    assert special >= {*range(first, len(tokens))} - {*harmless}


def test_named_chat_templates() -> None:
    templates = {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_template.rag": "documents",
        "tokenizer.chat_templates": ["tool_use", "rag"],
    }
    found = read_tokenizer(changed("qwen2", templates))
    assert found is not None
    assert {one["name"]: one["template"] for one in found.settings["chat_template"]} == {
        "default": "plain",
        "tool_use": "tools",
        "rag": "documents",
    }
    with pytest.raises(CheckpointError, match="chat_template.rag is no text"):
        read_tokenizer(changed("qwen2", {"tokenizer.chat_template.rag": 3}))


def test_no_tokenizer(tmp_path: Path) -> None:
    assert read_tokenizer(changed("llama", {"tokenizer.ggml.model": None})) is None
    with pytest.raises(CheckpointError, match="no tokenizer: there is no tokenizer.ggml.model"):
        read_text_config(FOLDER / "types.gguf")


COUNT = len(read_gguf(FOLDER / "llama.gguf").metadata["tokenizer.ggml.tokens"])


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("llama", {"model": "rwkv"}, "model 'rwkv' is not supported; supported: gpt2, llama, t5"),
        ("llama", {"model": 3}, "model 3 is not supported"),
        ("gpt2", {"pre": "new"}, "pre 'new' is not supported; supported: default, gpt-2"),
        ("gpt2", {"pre": ["x"]}, "is not supported; supported"),
        ("gpt2", {"tokens": None}, "tokens: expected an array of texts, found nothing"),
        ("gpt2", {"tokens": []}, "tokens: 0 tokens"),
        ("gpt2", {"tokens": "abc"}, "tokens: expected an array of texts, found str"),
        ("gpt2", {"tokens": np.arange(3)}, "expected an array of texts, found ndarray"),
        ("gpt2", {"merges": None}, "merges: expected an array of texts"),
        ("gpt2", {"merges": ["a b c"]}, "merges: 'a b c': expected two tokens that make one"),
        ("gpt2", {"merges": ["zz yy"]}, "merges: 'zz yy'"),
        ("gpt2", {"merges": [""]}, "merges: ''"),
        ("gpt2", {"add_bos_token": 1}, "add_bos_token: expected true or false"),
        ("gpt2", {"add_space_prefix": True}, "add_space_prefix beside BPE of bytes"),
        ("gpt2", {"add_eos_token": True, "eos_token_id": None}, "without eos_token_id"),
        ("gpt2", {"eos_token_id": 1 << 20}, "eos_token_id: expected a whole number from 0 to"),
        ("gpt2", {"token_type": np.ones(3, "i4")}, "token_type: 3 entries for 404 tokens"),
        ("llama", {"token_type": np.full(COUNT, 9)}, "token 0 is of the kind 9; expected 1 to 6"),
        ("llama", {"scores": None}, "scores: expected a number per token"),
        ("llama", {"scores": np.full(COUNT, np.nan)}, "scores: expected a number per token"),
        ("llama", {"scores": np.ones(4)}, f"scores: 4 entries for {COUNT} tokens"),
        ("llama", {"scores": ["1"]}, "scores: expected an array of numbers, found list"),
    ],
)
def test_refused(name: str, keys: dict[str, Any], words: str) -> None:
    file = changed(name, {f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    with pytest.raises(CheckpointError, match=words):
        built(file)
    chat = changed(name, {"tokenizer.chat_template": 7})
    with pytest.raises(CheckpointError, match="chat_template is no text"):
        read_tokenizer(chat)
