"""TextModel: answers, entities and filled masks, beside those of transformers' pipelines."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pipeline_cases as cases
import pytest
from checkpoints import GOLDEN
from packhorse.text.tasks.spans import _largest
from tiny_tokenizer import with_kind

pytest.importorskip("tokenizers")

EXPECTED = json.loads((GOLDEN / "pipelines.json").read_text())
TOLERANCE = 1e-5


def load(case: Any, folder: Path, **options: Any) -> packhorse.TextModel:
    model, kind, settings = case
    return packhorse.TextModel.load(with_kind(GOLDEN / model, folder, kind, **settings), **options)


def check(found: list[Any], expected: list[Any], names: tuple[str, ...]) -> None:
    """All but the scores is the same, in the same order."""
    if expected and isinstance(expected[0][0], list):
        for one, right in zip(found, expected, strict=True):
            check(one, right, names)
        return
    fields = [[one[name] for name in names if name in one] for one in found]
    assert fields == [right[1:] for right in expected]
    scores = [right[0] for right in expected]
    np.testing.assert_allclose([one["score"] for one in found], scores, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", cases.READERS)
def test_answers(name: str, tmp_path: Path) -> None:
    model = load(cases.READERS[name], tmp_path / "m")
    questions, contexts = zip(*cases.QUESTIONS, strict=True)
    for options, expected in zip(
        cases.ANSWER_OPTIONS, EXPECTED["question-answering"][name], strict=True
    ):
        ours = {cases.OURS.get(option, option): value for option, value in options.items()}
        found = model.answer(questions, contexts, **ours)
        for answers, right, context in zip(found, expected, contexts, strict=True):
            listed = answers if isinstance(answers, list) else [answers]
            assert all(one["answer"] == context[one["start"] : one["end"]] for one in listed)
            # The processor decides which spans of probability 0 fill the list of transformers.
            likely = [one for one in listed if one["score"] > TOLERANCE]
            check(likely, [one for one in right if one[0] > TOLERANCE], cases.ANSWER)


@pytest.mark.parametrize("count", [1, 2, 3, 64, 599, 600, 700])
def test_equally_likely_spans_come_in_their_order(count: int) -> None:
    scores = np.zeros((40, 15), np.float32)
    scores[7, 3] = scores[2, 5] = 0.5
    zeros = np.flatnonzero(scores == 0).tolist()
    assert _largest(scores, count).tolist() == [35, 108, *zeros][:count]


@pytest.mark.parametrize("name", cases.TAGGERS)
def test_entities(name: str, tmp_path: Path) -> None:
    model = load(cases.TAGGERS[name], tmp_path / "m")
    for options, expected in zip(
        cases.TAG_OPTIONS, EXPECTED["token-classification"][name], strict=True
    ):
        found = model.classify_tokens(iter(cases.TAGGED), **options)
        for text, entities, right in zip(cases.TAGGED, found, expected, strict=True):
            check(entities, right, cases.ENTITY)
            assert all(one["word"] == text[one["start"] : one["end"]] for one in entities)


@pytest.mark.parametrize("name", cases.FILLERS)
def test_fill_mask(name: str, tmp_path: Path) -> None:
    model = load(cases.FILLERS[name], tmp_path / "m", max_predictions=2)
    for options, expected in zip(cases.FILL_OPTIONS, EXPECTED["fill-mask"][name], strict=True):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "targets: .* is not in the vocabulary")
            found = model.fill_mask(cases.MASKED, **options)
        check(found, expected, cases.WORD)
    assert model.fill_mask(cases.MASKED[0]) == model.fill_mask(cases.MASKED)[0]
