"""Scores of labels and pairs with the activation that a caller asks for, beside transformers'
pipeline and sentence-transformers' CrossEncoder (make_activation_golden.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from text_cases import CLASSIFIERS, PAIRS, RERANKERS, TEXTS
from tiny_tokenizer import with_tokenizer

pytest.importorskip("tokenizers")

EXPECTED = json.loads((GOLDEN / "activations.json").read_text())
TOLERANCE = 5e-6  # for float32 logits whose sums are some units


def load(case: Any, folder: Path) -> packhorse.TextModel:
    model, pair, config = case
    return packhorse.TextModel.load(with_tokenizer(GOLDEN / model, folder, pair, config))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels(name: str, tmp_path: Path) -> None:
    model = load(CLASSIFIERS[name], tmp_path / "m")
    for activation, expected in EXPECTED["labels"][name].items():
        for found, right in zip(
            model.classify(TEXTS, top_k=None, activation=activation), expected, strict=True
        ):
            assert [one["label"] for one in found] == [one["label"] for one in right]
            scores = ([one["score"] for one in some] for some in (found, right))
            np.testing.assert_allclose(*scores, atol=TOLERANCE)
    assert model.classify(TEXTS, activation=None) == model.classify(TEXTS)
    with pytest.raises(ValueError, match="activation is 'relu', expected None or one of 'softmax'"):
        model.classify(TEXTS, activation="relu")  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["bert", "bert-multi", "roberta"])
def test_labels_of_a_cross_encoder(name: str, tmp_path: Path) -> None:
    """CrossEncoder.predict gives logits, where there are several labels."""
    model = load(CLASSIFIERS[name], tmp_path / "m")
    found = model.classify(PAIRS, top_k=None)
    assert found == model.classify(PAIRS, top_k=None, activation="none")
    rows = [{one["label"]: one["score"] for one in row} for row in found]
    scores = [[row[label] for label in model.labels] for row in rows]
    np.testing.assert_allclose(scores, EXPECTED["encoder"][name], atol=TOLERANCE)


@pytest.mark.parametrize("name", RERANKERS)
def test_scores(name: str, tmp_path: Path) -> None:
    model = load(RERANKERS[name], tmp_path / "m")
    for activation, expected in EXPECTED["scores"][name].items():
        found = model.score_pairs(PAIRS, activation=activation)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        query, document = PAIRS[0]
        assert model.score(query, document, activation=activation) == found[0]
    with pytest.raises(ValueError, match="activation is 'softmax', expected None or one of 'sig"):
        model.score_pairs(PAIRS, activation="softmax")
