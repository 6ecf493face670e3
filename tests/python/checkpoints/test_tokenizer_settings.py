"""Ids and chat templates of folders with all files that may stand beside a vocabulary, beside
those of transformers 5, or of its version 4.57 where `follows_4` says why."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse.text.generation.chat_template import ChatTemplates
from packhorse_weights.errors import CheckpointError
from packhorse_weights.generation_files import read_generation
from tokenizer_settings_cases import CASES, KINDS, TEMPLATE, TEXTS, write_case

pytest.importorskip("tokenizers")

_GOLDEN = json.loads((GOLDEN / "tokenizer_settings.json").read_text(encoding="utf-8"))
FOUR, FIVE = (_GOLDEN[version]["results"] for version in ("4", "5"))
# Settings that 5 ignores beside a tokenizer.json, although models were trained with them.
ENDS = ("begin", "end", "both")
CHAT = [{"role": "user", "content": "x"}]


def ids_of(folder: Path) -> list[list[int]]:
    return [ids.tolist() for ids in TextTokenizer.load(folder).encode(TEXTS, None).ids]


def follows_4(kind: str, setting: str) -> bool:
    """True where a case may have the ids of 4.57 in place of those of 5."""
    # 5 builds the tokenizers of older files anew: it leaves out <s>, and white space before <mask>.
    if not KINDS[kind].tokenizer_json:
        return True
    # Classes of one family take no more than vocabulary and merges from tokenizer.json in 5. Here
    # its added tokens, and how it normalises and cuts a text, stay.
    own = kind.startswith(("distilbert", "roberta", "bart", "gpt", "qwen", "deberta", "xlm"))
    added = ("decoder", "split, not special", "additional, objects", "map of a name", "added")
    parts = ("prefix", "no prefix", "not lower", "no bos", "new pad, object")
    return kind == "albert" or (own and setting.startswith((*added, *parts)))


@pytest.mark.parametrize(("kind", "setting"), CASES)
def test_as_transformers(kind: str, setting: str, tmp_path: Path) -> None:
    folder = write_case(tmp_path / "case", kind, setting)
    four, five = (results[f"{kind}: {setting}"] for results in (FOUR, FIVE))
    theirs = [result for result in (four, five) if isinstance(result, dict)]
    ids = ids_of(folder)
    if kind == "llama" and setting in ("end", "both"):  # ids of version 5, and </s> of 4.57
        assert ids == [[*row, four["ids"][0][-1]] for row in five["ids"]]
    elif setting in ENDS and kind in ("mistral", "llama-bytes", "gpt-neox"):
        assert ids == four["ids"]
    elif five in theirs and not follows_4(kind, setting):
        assert ids == five["ids"]
    elif (kind, setting) != ("qwen2-files", "prefix"):  # 4.57 has an error there
        assert ids in [result["ids"] for result in theirs]
    # 4.57 gives a template `additional_special_tokens`, 5 the names that a model has for itself;
    # here it gets both, and the tokens of the class that the files name.
    if isinstance(four, dict) or kind not in ("mistral", "llama-bytes"):
        tokens = read_generation(folder).special_tokens
        prompt = ChatTemplates({"default": TEMPLATE}, tokens).render(CHAT)
        known = zip(*(result["prompt"].split(" ; ") for result in theirs), strict=True)
        for found, expected in zip(prompt.split(" ; "), known, strict=True):
            assert found in expected, prompt


@pytest.mark.parametrize("kind", ["bert", "roberta-files", "llama-files", "qwen3", "mistral"])
def test_added_tokens_are_no_text(kind: str, tmp_path: Path) -> None:
    folder = write_case(tmp_path / "case", kind, "decoder, white space")
    tokenizer = TextTokenizer.load(folder)
    (ids,) = tokenizer.encode(["the <X>"], None).ids
    assert tokenizer.id_of("<X>") in ids
    assert tokenizer.id_of("<X>") in tokenizer.special_ids
    assert tokenizer.decode(ids, skip_special=True).strip() == "the"
    copied = pickle.loads(pickle.dumps(tokenizer))
    assert copied.encode(["the <X>"], None).ids[0].tolist() == ids.tolist()


def test_gpt_neox_puts_nothing_else_around_a_text(tmp_path: Path) -> None:
    """Nothing is added whatever the post-processor is, as in both versions of transformers."""
    folder = write_case(tmp_path / "case", "gpt-neox", "plain")
    expected = ids_of(folder)
    place = [{"SpecialToken": {"id": "the", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {
        "type": "TemplateProcessing",
        "single": place,
        "pair": [*place, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"the": {"id": "the", "ids": [5], "tokens": ["the"]}},
    }
    assert ids_of(changed(folder, lambda fields: fields.update(post_processor=template))) == (
        expected
    )


def test_spaces_before_punctuation(tmp_path: Path) -> None:
    """Spaces of BPE tokenizers stay, as in transformers 5: they are the text's own."""
    clean_up = "clean_up_tokenization_spaces"
    force = f"{clean_up}_for_bpe_even_though_it_will_corrupt_output"
    for kind, settings, expected in (
        ("bert", {clean_up: True}, "the cat."),
        ("qwen3", {}, "the cat ."),
        ("qwen3", {clean_up: True}, "the cat ."),
        ("qwen3", {clean_up: True, force: True}, "the cat."),
    ):
        folder = write_case(tmp_path / str(len([*tmp_path.iterdir()])), kind, "plain")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer = TextTokenizer.load(folder)
        (ids,) = tokenizer.encode(["the cat ."], None).ids
        assert tokenizer.decode(ids, skip_special=True) == expected


def test_a_tokenizer_json_of_any_size_is_not_read(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "case", "bert", "plain")
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(3 << 30)  # takes no space on the disk
    with pytest.raises(CheckpointError, match="tokenizer.json: 3221225472 bytes, more than the 67"):
        TextTokenizer.load(folder)


def changed(folder: Path, change: Any) -> Path:
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    change(fields)
    path.write_text(json.dumps(fields), encoding="utf-8")
    return folder


def large_template(fields: dict[str, Any]) -> None:
    fields["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [1 << 31]


def large_vocabulary(fields: dict[str, Any]) -> None:
    fields["model"]["vocab"]["the"] = (1 << 32) - 1


def no_length(fields: dict[str, Any]) -> None:
    fields["pre_tokenizer"] = {"type": "FixedLength", "length": 0}


def endless_padding(fields: dict[str, Any]) -> None:
    fields["padding"] = {
        "strategy": {"Fixed": 1 << 40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }


def no_rules(fields: dict[str, Any]) -> None:
    fields["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def second_text_only(fields: dict[str, Any]) -> None:
    places = [{"Sequence": {"id": "B", "type_id": 0}}]
    fields["post_processor"] |= {"single": places, "pair": places}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (large_template, "the id or type 2147483648, expected at most 2147483647"),
        (no_rules, "tokenizer.json: .*cannot parse precompiled_charsmap"),
        (second_text_only, "tokenizer.json: .*index out of bounds"),
    ],
)
def test_what_cannot_be_loaded(change: Any, message: str, tmp_path: Path) -> None:
    folder = changed(write_case(tmp_path / "case", "bert", "plain"), change)
    with pytest.raises(ValueError, match=f"(?i){message}"):
        TextTokenizer.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (large_vocabulary, "the id or type 4294967295, expected at most 2147483647"),
        (no_length, "texts.0.: .*must be non-zero"),
    ],
)
def test_what_cannot_be_encoded(change: Any, message: str, tmp_path: Path) -> None:
    folder = changed(write_case(tmp_path / "case", "bert", "plain"), change)
    tokenizer = TextTokenizer.load(folder)
    for encode in (
        lambda text: tokenizer.encode([text], None),
        lambda text: tokenizer.encode([(text, text)], None),
        lambda text: tokenizer.read([text]),
        tokenizer.plain_ids,
    ):
        with pytest.raises(ValueError, match=message):
            encode("the cat")


def test_padding_of_any_length_is_not_made(tmp_path: Path) -> None:
    folder = write_case(tmp_path / "case", "bert", "end")
    expected = ids_of(folder)
    assert ids_of(changed(folder, endless_padding)) == expected
