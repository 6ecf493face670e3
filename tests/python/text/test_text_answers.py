"""TextModel: how contexts are read in windows; what it answers is in test_text_pipelines.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse.text import TextTokenizer
from packhorse.text.tokenization.windows import Windows
from tiny_tokenizer import KINDS, with_kind, with_tokenizer

pytest.importorskip("tokenizers")

CONTEXTS = (
    "Mark sat on the mat, and the dogs were singing in Paris. " * 6,
    "  the cat's  mat",
    "",
    "dogs " * 33,
)


def expected_windows(tokenizer: Any, pair: Any, length: int, stride: int, side: str) -> list[Any]:
    """Windows as the package tokenizers makes them."""
    tokenizer.no_padding()
    strategy = "only_second" if len(pair) == 2 else "longest_first"
    tokenizer.enable_truncation(length, stride=stride, strategy=strategy, direction=side)
    encoding = tokenizer.encode(*pair)
    return [encoding, *encoding.overflowing]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "stride"), [(40, 10), (21, 3), (16, 0)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_windows(kind: str, length: int, stride: int, side: str, tmp_path: Path) -> None:
    folder = with_kind(GOLDEN / "bert-answers", tmp_path / "m", kind, truncation_side=side)
    tokenizer = TextTokenizer.load(folder)
    own = KINDS[kind]()
    windows = Windows(tokenizer, length, stride)
    for pair in (*(("who sat", context) for context in CONTEXTS), *((c,) for c in CONTEXTS)):
        read = tokenizer.read([pair if len(pair) == 2 else pair[0]])
        found = windows.split(read[0], len(pair) - 1, "it")
        expected = expected_windows(own, pair, length, stride, side)
        for window, right in zip(found, expected, strict=True):
            tokens = window.tokens
            assert tokens.ids.tolist() == right.ids
            assert [*zip(tokens.begins, tokens.ends, strict=True)] == right.offsets
            assert tokens.words.tolist() == [-1 if w is None else w for w in right.word_ids]
            parts = [-1 if part is None else part for part in right.sequence_ids]
            assert tokens.parts.tolist() == parts
            places = np.arange(len(parts))[window.own].tolist()
            assert places == [i for i, part in enumerate(parts) if part == len(pair) - 1]


def test_arguments(tmp_path: Path) -> None:
    model = packhorse.TextModel.load(with_tokenizer(GOLDEN / "bert-answers", tmp_path / "m"))
    context = "the cat sat on the mat " * 10
    with pytest.raises(ValueError, match=r"texts\[1\]: the question has 38 tokens with special"):
        model.answer(["who", "who " * 35], [context] * 2)
    with pytest.raises(ValueError, match="question is a str and context is not"):
        model.answer("who", [context])
    with pytest.raises(ValueError, match="1 questions and 2 contexts, expected as many"):
        model.answer(["who"], [context] * 2)
    with pytest.raises(ValueError, match="top_k is 0"):
        model.answer("who", context, top_k=0)
    assert model.answer([], []) == []
    questions = ["who", "where sat a cat"]
    expected = model.answer(questions, [context] * 2, top_k=2)
    assert model.answer(iter(questions), context, top_k=2) == expected
    assert [model.answer(question, context, top_k=2) for question in questions] == expected
    small = packhorse.TextModel.load(tmp_path / "m", max_tokens=60, max_sequences=3)
    assert small.answer(questions, context, top_k=2) == expected


def test_empty_context(tmp_path: Path) -> None:
    model = packhorse.TextModel.load(with_tokenizer(GOLDEN / "bert-answers", tmp_path / "m"))
    nothing = {"start": 0, "end": 0, "answer": ""}
    assert model.answer("who", "") == {"score": 0, **nothing}
    assert model.answer("who", "", allow_none=True) == {"score": 1, **nothing}
