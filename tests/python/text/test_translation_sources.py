"""Texts to translate, as tokens: ids beside those of transformers, languages, refusals."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoints import BERT, GOLDEN
from packhorse.text import TextTokenizer
from packhorse.text.translation.sources import SourceTokenizer
from packhorse_weights import convert
from tokenizer_texts import SOURCES, TEXTS

pytest.importorskip("tokenizers")

FOLDERS = GOLDEN / "tokenizers"
EXPECTED = json.loads((GOLDEN / "translation_sources.json").read_text())
OLDER = json.loads((GOLDEN / "tokenizers.json").read_text())
ALL = [*TEXTS, *SOURCES]
CASES = sorted(EXPECTED.keys() - {"versions"})


def load(name: str) -> SourceTokenizer:
    return SourceTokenizer(TextTokenizer.load(FOLDERS / name))


def ids(sources: SourceTokenizer, texts: list[str], *languages: str | None) -> list[list[int]]:
    direction = sources.direction(*languages)
    return [row.tolist() for row in sources.encode(texts, direction)]


def expected_ids(name: str) -> list[list[int]]:
    return EXPECTED[name]["ids"]


# The direction in which the tokens around a text are those that transformers puts there.
DIRECTIONS = {"marian": (None, None), "m2m-100": ("de", "fr")}


@pytest.mark.parametrize("name", [*DIRECTIONS])
def test_ids_as_transformers(name: str) -> None:
    found = ids(load(name), ALL, *DIRECTIONS[name])
    for text, one, theirs in zip(ALL, found, expected_ids(name), strict=True):
        assert one == theirs, text


@pytest.mark.parametrize("name", CASES)
def test_pieces_of_both_sides(name: str) -> None:
    sources = load(name)
    for target, key in ((False, "ids"), (True, "target_ids")):
        for text, one, theirs in zip(
            ALL, sources.pieces(ALL, target=target), EXPECTED[name][key], strict=True
        ):
            begin = 1 if name == "m2m-100" else 0
            assert one.tolist() == theirs[begin:-1], text


@pytest.mark.parametrize("name", CASES)
def test_texts_as_transformers(name: str) -> None:
    tokenizer = TextTokenizer.load(FOLDERS / name)
    for text, row, theirs in zip(ALL, expected_ids(name), EXPECTED[name]["texts"], strict=True):
        assert tokenizer.decode(row, skip_special=True).strip() == theirs, text


@pytest.mark.parametrize("name", ["mbart", "mbart-50", "nllb"])
def test_default_languages_as_transformers(name: str) -> None:
    """Those around a text where the files name the source alone."""
    found = ids(load(name), TEXTS, None, "fr")
    for text, one, theirs in zip(TEXTS, found, OLDER[name]["ids"], strict=False):
        assert one == theirs, text


def test_codes_of_the_target_begin_a_source() -> None:
    sources = load("marian-codes")
    numbers = json.loads((FOLDERS / "marian-codes" / "vocab.json").read_text())
    for code, token in (("fr", ">>fr<<"), ("pt_BR", ">>pt_BR<<"), ("pt", ">>pt_BR<<")):
        (row,) = ids(sources, ["the cat"], None, code)
        assert row == ids(sources, [f"{token}the cat"], None, "es")[0][1:]
        assert row[0] == numbers[token]
    with pytest.raises(
        ValueError, match="target is 'de', which is no language of this model.*'?es"
    ):
        sources.direction("en", "de")
    with pytest.raises(ValueError, match="source is 'fr', but this model's is 'en' alone"):
        sources.direction("fr", "es")


def test_places_of_languages() -> None:
    """mBART has the source's language behind, and begins with the target's; the others differ."""
    for name, source, target in (
        ("mbart", "en_XX", "ro_RO"),
        ("mbart-50", "en_XX", "ro_RO"),
        ("nllb", "eng_Latn", "ron_Latn"),
        ("m2m-100", "__en__", "__ro__"),
    ):
        tokenizer = TextTokenizer.load(FOLDERS / name)
        sources = SourceTokenizer(tokenizer)
        direction = sources.direction("en", "ro")
        end, first = tokenizer.id_of("</s>"), tokenizer.id_of(source)
        ends = ([], [end, first]) if name == "mbart" else ([first], [end])
        assert (direction.before.tolist(), direction.after.tolist()) == ends
        begin = (tokenizer.id_of(target), None)
        assert direction.target == (begin if name == "mbart" else begin[::-1])


@pytest.mark.parametrize(
    ("name", "code", "found"),
    [
        ("nllb", "de", "deu_Latn"),
        ("nllb", "zh", "zho_Hans"),
        ("nllb", "zh-Hant", None),
        ("nllb", "zho_hant", "zho_Hant"),
        ("nllb", "FRA_LATN", "fra_Latn"),
        ("nllb", "no", "nob_Latn"),
        ("nllb", "ar", "arb_Arab"),
        ("nllb", "kas", None),  # two scripts
        ("mbart", "pl", None),
        ("mbart-50", "pl", "pl_PL"),
        ("m2m-100", "ast", "ast"),
        ("m2m-100", "tlh", None),
    ],
)
def test_codes_as_people_write_them(name: str, code: str, found: str | None) -> None:
    names = load(name).names
    assert names is not None
    if found is None:
        with pytest.raises(ValueError, match="which is no language of this model"):
            names.find(code, "target")
    else:
        assert names.find(code, "target") == found


def test_models_that_are_told_no_languages() -> None:
    sources = load("t5")
    (row,) = ids(sources, ["the cat <extra_id_0>"], None, None)
    assert row[-1] == 1
    assert row[-2] == TextTokenizer.load(FOLDERS / "t5").id_of("<extra_id_0>")
    with pytest.raises(ValueError, match="target is 'fr', but this model is told no languages"):
        sources.direction(None, "fr")


def test_pickled() -> None:
    tokenizer = pickle.loads(pickle.dumps(TextTokenizer.load(FOLDERS / "m2m-100")))
    found = SourceTokenizer(tokenizer)
    assert ids(found, TEXTS, "de", "fr") == expected_ids("m2m-100")[: len(TEXTS)]
    assert found.encode([], found.direction("de", "fr")) == []
    np.testing.assert_array_equal(found.pieces([""])[0], np.empty(0, np.int32))


@pytest.mark.parametrize("name", ["marian-codes", "m2m-100", "nllb", "mbart", "mbart-50", "t5"])
def test_converted(name: str, tmp_path: Path) -> None:
    """A converted folder has no config.json that says what the files mean."""
    folder = Path(shutil.copytree(BERT, tmp_path / "folder"))
    for file in (FOLDERS / name).iterdir():
        if file.name != "config.json":
            shutil.copyfile(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text())
    config["tokenizer_class"] = {"mbart": "MBartTokenizer", "t5": "T5Tokenizer"}.get(name)
    if name in ("marian-codes", "m2m-100"):
        config["tokenizer_class"] = f"{'Marian' if 'mar' in name else 'M2M100'}Tokenizer"
    (folder / "config.json").write_text(json.dumps(config))
    before, after = load(name), SourceTokenizer(TextTokenizer.load(convert(folder, tmp_path / "c")))
    languages = (None, None) if name == "t5" else (None, "fr")
    assert ids(after, ALL, *languages) == ids(before, ALL, *languages)
    assert after.direction(*languages)[2] == before.direction(*languages)[2]
