"""TextModel: tokens, embeddings, and how texts of any number get through."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse.text.streaming import prepare_ahead
from text_cases import PROMPTS, TEXTS
from tiny_tokenizer import make_tokenizer, with_tokenizer

pytest.importorskip("tokenizers")

CASES = [*TEXTS, "dog", "a cat", *(f"{'mat ' * i}at" for i in range(60))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = with_tokenizer(GOLDEN / "bert-gelu", tmp_path_factory.mktemp("text") / "model")
    write(made, "config_sentence_transformers.json", {"prompts": PROMPTS})
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> packhorse.TextModel:
    return packhorse.TextModel.load(folder)


def write(folder: Path, name: str, fields: Any) -> None:
    (folder / name).write_text(json.dumps(fields))


def expected(model: packhorse.TextModel, texts: list[str], length: int = 40) -> Any:
    """Ids by the tokenizer itself, embeddings by the session."""
    tokenizer = make_tokenizer()
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    ids = [tokenizer.encode(text).ids for text in texts]
    return model.session.run_many(ids, outputs=["embedding"]).embedding


def test_embed(model: packhorse.TextModel) -> None:
    rows = expected(model, CASES)
    np.testing.assert_array_equal(model.embed(CASES), rows)
    np.testing.assert_array_equal(model.embed(tuple(CASES)), rows)
    np.testing.assert_array_equal(model.embed(text for text in CASES), rows)
    np.testing.assert_array_equal(model.embed(CASES[3]), rows[3])
    assert model.embed([]).shape == (0, 32)
    assert model.embed(iter(())).shape == (0, 32)


@pytest.mark.parametrize("limits", [(40, 1), (40, 7), (45, 64), (8192, 256)])
def test_any_number_of_texts(folder: Path, model: packhorse.TextModel, limits: Any) -> None:
    small = packhorse.TextModel.load(folder, max_tokens=limits[0], max_sequences=limits[1])
    calls: list[Any] = []
    found = small.embed(CASES, progress=lambda *done: calls.append(done))
    np.testing.assert_array_equal(found, model.embed(CASES))
    assert [total for _, total in calls] == [len(CASES)] * len(calls)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1][0] == len(CASES)
    calls.clear()
    small.embed(iter(CASES), progress=lambda *done: calls.append(done))
    assert calls[-1] == (len(CASES), None)


def test_prepare_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for i in range(10):
            taken.append(i)
            yield i

    for size in (1, 3, 5, 10, 11):
        taken.clear()
        done: list[Any] = []
        for chunk, prepared in prepare_ahead(items(), size, lambda chunk, first: (chunk, first)):
            assert prepared == (chunk, len(done))
            assert len(taken) <= len(done) + 2 * size
            done += chunk
        assert done == list(range(10))
    assert list(prepare_ahead([], 3, lambda chunk, first: 0)) == []

    def fail(chunk: list[int], first: int) -> int:
        if 7 in chunk:
            raise ValueError("seven")
        return first

    found: list[int] = []
    with pytest.raises(ValueError, match="seven"):
        found.extend(i for chunk, _ in prepare_ahead(range(10), 2, fail) for i in chunk)
    assert found == list(range(6))


def test_truncation(model: packhorse.TextModel) -> None:
    texts = ["a cat", "the cat sat on the mat " * 30, "dog"]
    before = model.num_truncated
    np.testing.assert_array_equal(model.embed(texts, max_length=8), expected(model, texts, 8))
    assert model.num_truncated == before + 1
    with pytest.raises(ValueError, match=r"texts\[1\] has 182 tokens, max_length is 40, and trunc"):
        model.embed(texts, truncation=False)
    with pytest.raises(ValueError, match=r"texts\[401\] has 182 tokens"):
        model.embed(["a"] * 400 + texts, truncation=False)
    np.testing.assert_array_equal(
        model.embed(["a " * 118, "a " * 38], truncation=False, max_length=120),
        expected(model, ["a " * 118, "a " * 38], 120),
    )
    assert model.num_truncated == before + 1
    for length, message in (
        (121, "max_length 121 is not between 1 and the model's longest sequence, 120"),
        (0, "max_length 0 is not between"),
        (2, "max_length 2 leaves no room beside 2 special tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            model.embed(texts, max_length=length)
    with pytest.raises(ValueError, match="truncation 'middle' is not True, False or one of"):
        model.embed(texts, truncation="middle")  # type: ignore[arg-type]


def test_max_length_and_max_tokens(folder: Path) -> None:
    assert packhorse.TextModel.load(folder, max_length=120).max_length == 120
    with pytest.raises(ValueError, match="max_length 121 is not between 1 and .* 120"):
        packhorse.TextModel.load(folder, max_length=121)
    with pytest.raises(ValueError, match="max_length 40 exceeds max_tokens 39"):
        packhorse.TextModel.load(folder, max_tokens=39)


def test_max_length_may_be_set(folder: Path) -> None:
    model = packhorse.TextModel.load(folder)
    other = copy.copy(model)
    model.max_length = 8
    text = "the cat sat on the mat"
    np.testing.assert_array_equal(model.embed(text), other.embed(text, max_length=8))
    assert (model.max_length, other.max_length) == (8, 40)
    with pytest.raises(ValueError, match="max_length 121 is not between 1 and .* 120"):
        model.max_length = 121
    assert model.max_length == 8


def test_texts_that_are_none(model: packhorse.TextModel) -> None:
    for texts in ([1], [b"a"], [None], [["a", "b", "c"]], [("a", 1)]):
        with pytest.raises(ValueError, match=r"texts\[0\] is .*, expected a text or a pair"):
            model.embed(texts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"texts\[300\] is 5"):
        model.embed(["a"] * 300 + [5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"texts\[301\] has a lone surrogate, .*, at position 10"):
        model.embed(["a"] * 301 + ["half of a \ud83d", "b"])
    np.testing.assert_array_equal(model.embed(["a"]), expected(model, ["a"]))


def test_prompts(model: packhorse.TextModel, folder: Path) -> None:
    assert model.prompts == PROMPTS
    texts = ["the cat", ""]
    rows = expected(model, [f"search for: {text}" for text in texts])
    np.testing.assert_array_equal(model.embed(texts, prompt_name="query"), rows)
    np.testing.assert_array_equal(model.embed(texts, prompt="search for: "), rows)
    with pytest.raises(ValueError, match="'queri' is not one of this model's prompts: query, "):
        model.embed(texts, prompt_name="queri")
    with pytest.raises(ValueError, match="not both"):
        model.embed(texts, prompt_name="query", prompt="")


def test_default_prompt(tmp_path: Path, model: packhorse.TextModel) -> None:
    folder = with_tokenizer(GOLDEN / "bert-gelu", tmp_path / "m")
    config = {"prompts": {**PROMPTS, "other": None}, "default_prompt_name": "query"}
    write(folder, "config_sentence_transformers.json", config)
    with_default = packhorse.TextModel.load(folder)
    found = with_default.embed("the cat")
    np.testing.assert_array_equal(found, model.embed("the cat", prompt_name="query"))
    np.testing.assert_array_equal(with_default.embed("the cat", prompt=""), model.embed("the cat"))
    assert with_default.prompts == PROMPTS


def test_threads_with_other_lengths(model: packhorse.TextModel) -> None:
    rows = {length: expected(model, CASES, length) for length in (5, 9, 17, 40)}
    text, interval = "mat " * 50, sys.getswitchinterval()

    def lengths_of(length: int) -> set[int]:
        return {len(model.tokenizer.encode([text], length).ids[0]) for _ in range(300)}

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lengths_of, rows)) == [{length} for length in rows]
            for found, right in zip(
                pool.map(lambda length: model.embed(CASES, max_length=length), rows),
                rows.values(),
                strict=True,
            ):
                np.testing.assert_array_equal(found, right)
    finally:
        sys.setswitchinterval(interval)
