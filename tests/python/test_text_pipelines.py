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
from tiny_tokenizer import with_kind

pytest.importorskip("tokenizers")

EXPECTED = json.loads((GOLDEN / "pipelines.json").read_text())
TOLERANCE = 1e-5


def load(case: Any, folder: Path, **options: Any) -> packhorse.TextModel:
    model, kind, settings = case
    return packhorse.TextModel.load(with_kind(GOLDEN / model, folder, kind, **settings), **options)


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """All but the scores is the same, in the same order."""
    assert [{**one, "score": 0} for one in found] == [{**one, "score": 0} for one in expected]
    scores = [one["score"] for one in expected]
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
            check(answers if isinstance(answers, list) else [answers], right)


def expected_entities(name: str, options: dict[str, Any]) -> Any:
    return EXPECTED["token-classification"][name][cases.TAG_OPTIONS.index(options)]


@pytest.mark.parametrize("name", cases.TAGGERS)
def test_entities(name: str, tmp_path: Path) -> None:
    model = load(cases.TAGGERS[name], tmp_path / "m")
    for options in cases.TAG_OPTIONS:
        found = model.classify_tokens(iter(cases.TAGGED), **options)
        for text, entities, right in zip(
            cases.TAGGED, found, expected_entities(name, options), strict=True
        ):
            assert all(e.pop("word") == text[e["start"] : e["end"]] for e in entities)
            check(entities, right)


@pytest.mark.parametrize("name", cases.FILLERS)
def test_fill_mask(name: str, tmp_path: Path) -> None:
    model = load(cases.FILLERS[name], tmp_path / "m", max_predictions=2)
    for options, expected in zip(cases.FILL_OPTIONS, EXPECTED["fill-mask"][name], strict=True):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "targets: .* is not in the vocabulary")
            found = model.fill_mask(cases.MASKED, **options)
        for words, right in zip(found, expected, strict=True):
            if isinstance(right[0], list):
                assert len(words) == len(right)
                for one, its in zip(words, right, strict=True):
                    check(one, its)
            else:
                check(words, right)
    assert model.fill_mask(cases.MASKED[0], **options) == found[0]
