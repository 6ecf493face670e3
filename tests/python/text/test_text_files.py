"""The files around a model that say how text becomes ids."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse_weights import CheckpointError, convert
from packhorse_weights.text import read_text_config
from text_cases import PROMPTS, TEXTS
from tiny_tokenizer import SPECIAL, add_tokenizer, make_tokenizer, vocabulary, with_tokenizer

pytest.importorskip("tokenizers")

BERT = GOLDEN / "bert-gelu"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_tokenizer(BERT, tmp_path / "model")


def write(folder: Path, name: str, fields: Any) -> None:
    (folder / name).write_text(json.dumps(fields))


def tokens(folder: Path, text: Any, max_length: int | None = None) -> list[str]:
    names = {i: token for token, i in vocabulary().items()}
    (ids,) = TextTokenizer.load(folder).encode([text], max_length).ids
    return [names[int(i)] for i in ids]


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer.json in .*bert-gelu, found: config.json, "):
        packhorse.TextModel.load(BERT)
    with pytest.raises(ValueError, match="AutoTokenizer.from_pretrained.*save_pretrained"):
        packhorse.TextModel.load(BERT)
    with pytest.raises(FileNotFoundError, match="none"):
        packhorse.TextModel.load(tmp_path / "none")


def test_no_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tokenizers .*'..text.'") as raised:
        packhorse.TextModel.load(folder)
    assert raised.value.name == "tokenizers"


def test_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ValueError, match="tokenizer.json: "):
        packhorse.TextModel.load(folder)


def test_git_lfs_pointer(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 466247\n"
    (folder / "tokenizer.json").write_text(pointer)
    with pytest.raises(CheckpointError, match="tokenizer.json: a Git LFS pointer, not the file"):
        packhorse.TextModel.load(folder)


def test_longest_sequence(folder: Path) -> None:
    assert packhorse.TextModel.load(folder).max_length == 40  # tokenizer_config.json
    write(folder, "sentence_bert_config.json", {"max_seq_length": 17})
    assert packhorse.TextModel.load(folder).max_length == 17
    assert packhorse.TextModel.load(folder, max_length=30).max_length == 30
    write(folder, "sentence_bert_config.json", {"max_seq_length": 512})
    assert packhorse.TextModel.load(folder).max_length == 120  # positions of the model
    (folder / "sentence_bert_config.json").unlink()
    add_tokenizer(folder, model_max_length=10**30)
    assert packhorse.TextModel.load(folder).max_length == 120


def test_older_names_of_the_settings(folder: Path) -> None:
    """Names are looked for in the order of sentence-transformers."""
    for i, kind in enumerate(
        ("xlnet", "xlm-roberta", "albert", "camembert", "distilbert", "roberta", "bert"), 10
    ):
        write(folder, f"sentence_{kind}_config.json", {"max_seq_length": i})
        assert packhorse.TextModel.load(folder).max_length == i


def test_max_length_of_a_hostile_spec(folder: Path, tmp_path: Path) -> None:
    spec_file = convert(folder, tmp_path / "converted") / "packhorse.json"
    spec = json.loads(spec_file.read_text())
    for value in ("40", 0, 1.5, True):
        spec_file.write_text(json.dumps(spec | {"max_length": value}))
        with pytest.raises(ValueError, match="spec: 'max_length' is .*, expected a positive int"):
            packhorse.TextModel.load(tmp_path / "converted")


def test_lower_case(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"do_lower_case": False, "tokenizer_class": "Bert"})
    assert tokens(folder, "Mark SAT") == ["[CLS]", "[UNK]", "[UNK]", "[SEP]"]
    write(folder, "sentence_bert_config.json", {"do_lower_case": True})
    assert tokens(folder, "Mark SAT") == ["[CLS]", "mark", "sat", "[SEP]"]


def test_normalizer_as_the_tokenizers_class_has_it(folder: Path) -> None:
    """transformers' classes of a family of models go by tokenizer_config.json."""
    for settings, expected in (
        ({"do_lower_case": False}, ["[UNK]", "[UNK]"]),
        ({"do_lower_case": True}, ["mark", "e"]),
        ({"do_lower_case": True, "strip_accents": False}, ["mark", "[UNK]"]),
        ({"do_lower_case": True, "strip_accents": None}, ["mark", "e"]),
        ({"do_lower_case": None, "tokenize_chinese_chars": None}, ["mark", "e"]),
        ({"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, ["mark", "e"]),
    ):
        write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **settings})
        assert tokens(folder, "Mark é")[1:-1] == expected


def test_truncation_side(folder: Path) -> None:
    assert tokens(folder, "the cat sat", 4) == ["[CLS]", "the", "cat", "[SEP]"]
    add_tokenizer(folder, truncation_side=None)
    assert tokens(folder, "the cat sat", 4) == ["[CLS]", "the", "cat", "[SEP]"]
    add_tokenizer(folder, truncation_side="left")
    assert tokens(folder, "the cat sat", 4) == ["[CLS]", "cat", "sat", "[SEP]"]
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(5, direction="left")
    add_tokenizer(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokens(folder, "the cat sat", 4) == ["[CLS]", "cat", "sat", "[SEP]"]
    add_tokenizer(folder, truncation_side="middle")
    with pytest.raises(CheckpointError, match="truncation_side 'middle' is not supported"):
        packhorse.TextModel.load(folder)


def test_added_tokens(folder: Path) -> None:
    add_tokenizer(
        folder, add_bos_token=True, bos_token={"content": "[CLS]"}, add_eos_token=True,
        eos_token="[SEP]",
    )  # fmt: skip
    packhorse.TextModel.load(folder)
    other = {"add_eos_token": True, "eos_token": "[MASK]"}
    add_tokenizer(folder, **other, tokenizer_class="BertTokenizer")  # a class without the setting
    assert tokens(folder, "cat") == ["[CLS]", "cat", "[SEP]"]
    add_tokenizer(folder, **other, tokenizer_class="LlamaTokenizer", add_bos_token=False)
    assert tokens(folder, "cat") == ["cat", "[MASK]"]
    add_tokenizer(
        folder, **other, tokenizer_class="LlamaTokenizer", add_bos_token=True, bos_token=None
    )
    with pytest.raises(CheckpointError, match="no bos_token, which this tokenizer needs"):
        packhorse.TextModel.load(folder)
    add_tokenizer(folder, **other, auto_map={"AutoTokenizer": ["a.B", None]})
    with pytest.raises(ValueError, match="says add_eos_token, but the post_processor does not add"):
        packhorse.TextModel.load(folder)
    add_tokenizer(folder, add_bos_token="yes")
    with pytest.raises(CheckpointError, match="add_bos_token: expected true or false"):
        packhorse.TextModel.load(folder)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("sentence_bert_config.json", {"query_length": 32}, "query_length = 32 is not supported"),
        ("sentence_bert_config.json", {"query_expansion": {"x": 1}}, "query_expansion"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "has no text"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"a": 7}},
            "'a' is 7, expected a str",
        ),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts: expected an object"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": []},
            "is not one of no prompts",
        ),
        ("tokenizer_config.json", {"do_lower_case": 1}, "do_lower_case: expected true or false"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "a", "prompts": PROMPTS},
            "default_prompt_name 'a' is not one of query, document",
        ),
    ],
)
def test_refused(folder: Path, name: str, fields: Any, message: str) -> None:
    write(folder, name, fields)
    with pytest.raises(CheckpointError, match=message):
        packhorse.TextModel.load(folder)


def test_settings_that_change_nothing(folder: Path) -> None:
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward"}},
        "processing_kwargs": {},
        "query_length": None,
    }
    write(folder, "sentence_bert_config.json", settings)
    assert packhorse.TextModel.load(folder).max_length == 40


def test_a_transformer_in_a_folder_of_its_own(folder: Path, tmp_path: Path) -> None:
    """Older versions of sentence-transformers wrote such folders; also converted, from the weight
    file."""
    root = tmp_path / "root"
    root.mkdir()
    folder.rename(root / "0_Transformer")
    (root / "0_Transformer" / "1_Pooling").rename(root / "1_Pooling")
    modules = json.loads((root / "0_Transformer" / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    write(root, "modules.json", modules)
    config = {"prompts": PROMPTS, "default_prompt_name": "query"}
    write(root, "config_sentence_transformers.json", config)
    write(root / "0_Transformer", "sentence_bert_config.json", {"max_seq_length": 33})
    model = packhorse.TextModel.load(root)
    assert (model.max_length, model.prompts) == (33, PROMPTS)

    converted = packhorse.TextModel.load(convert(root, tmp_path / "converted"))
    assert (converted.max_length, converted.prompts) == (33, PROMPTS)
    rows = model.embed(TEXTS)
    np.testing.assert_array_equal(converted.embed(TEXTS), rows)
    plain = converted.embed(TEXTS, prompt="")
    assert (rows != plain).any()
    file = packhorse.TextModel.load(tmp_path / "converted" / "model.safetensors")
    np.testing.assert_array_equal(file.embed(TEXTS), rows)


def test_read_text_config(folder: Path) -> None:
    config = read_text_config(folder)
    assert config.tokenizer_file == folder / "tokenizer.json"
    assert (config.settings.bos, config.settings.eos, config.truncation_side) == (None, None, None)
    assert config.type_ids
    add_tokenizer(folder, model_input_names=["input_ids"])
    assert not read_text_config(folder).type_ids
    (folder / "tokenizer_config.json").unlink()
    assert read_text_config(folder).type_ids


def test_ids_beyond_the_vocabulary(folder: Path) -> None:
    """A tokenizer of another model."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({**vocabulary(), "new": 100}, unk_token=SPECIAL["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    model = packhorse.TextModel.load(folder)
    with pytest.raises(ValueError, match="100"):
        model.embed(["cat", "new"])
    assert model.embed(["", "cat"]).shape == (2, 32)  # no special tokens: an empty sequence
