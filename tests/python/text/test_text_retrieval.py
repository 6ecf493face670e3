"""Sparse vectors, vectors of tokens and filled masks of texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from text_cases import TEXTS
from tiny_tokenizer import NO_TYPES, SPECIAL, WORDS, make_tokenizer, vocabulary, with_tokenizer

pytest.importorskip("tokenizers")

Load = Callable[..., packhorse.TextModel]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(name: str, **options: int) -> packhorse.TextModel:
        changes = {} if name.startswith("bert") else NO_TYPES
        folder = with_tokenizer(GOLDEN / name, tmp_path / name, config=changes)
        special_tokenizer().save(str(folder / "tokenizer.json"))
        return packhorse.TextModel.load(folder, **options)

    return load


def special_tokenizer() -> Any:
    """A tokenizer in whose texts special tokens may stand, like published ones."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    return tokenizer


def ids_of(text: str, longest: int = 40) -> list[int]:
    tokenizer = special_tokenizer()
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    ids: list[int] = tokenizer.encode(text).ids
    return ids


@pytest.mark.parametrize("name", ["bert-splade", "distilbert-splade"])
def test_sparse_of_the_vocabulary(load: Load, name: str) -> None:
    model = load(name)
    found = model.embed_sparse(iter(TEXTS))
    assert len(found) == len(TEXTS)
    for text, (ids, weights) in zip(TEXTS, found, strict=True):
        row = model.session.run([ids_of(text)], outputs=["sparse"]).sparse[0]
        assert ids.dtype == np.int32
        assert (np.diff(ids) > 0).all()
        np.testing.assert_array_equal(ids, np.flatnonzero(row > 0))
        np.testing.assert_array_equal(weights, row[ids])
    assert model.embed_sparse([]) == []
    for one, of_list in zip(model.embed_sparse(TEXTS[3]), found[3], strict=True):
        np.testing.assert_array_equal(one, of_list)


def test_sparse_of_own_tokens(load: Load) -> None:
    model = load("bge-m3")
    random = np.random.default_rng(0)
    texts = [*TEXTS, *(" ".join(random.choice(WORDS, 12)) for _ in range(100))]
    found = model.embed_sparse(texts)
    for text, (ids, weights) in zip(texts, found, strict=True):
        tokens = ids_of(text)
        of_tokens = model.session.run([tokens], outputs=["token_weights"]).token_weights[:, 0]
        expected: dict[int, float] = {}
        for token, weight in zip(tokens, of_tokens.tolist(), strict=True):
            if token >= len(SPECIAL) and weight > expected.get(token, 0.0):
                expected[token] = weight
        assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == expected
        assert (np.diff(ids) > 0).all()
    assert sum(len(ids) for ids, _ in found) > 10


@pytest.mark.parametrize("name", ["bert-colbert", "bge-m3"])
def test_vectors_of_tokens(load: Load, name: str) -> None:
    model = load(name)
    found = model.embed_tokens(TEXTS)
    for text, vectors in zip(TEXTS, found, strict=True):
        tokens = ids_of(text)
        expected = model.session.run([tokens], outputs=["vectors"]).vectors
        np.testing.assert_array_equal(vectors, expected)
        assert vectors.shape[0] == len(tokens)
    score = packhorse.late_interaction(found[0], found[0])
    assert score == pytest.approx(len(found[0]), rel=1e-5)  # every token finds itself
    assert model.embed_tokens([]) == []
    np.testing.assert_array_equal(model.embed_tokens(TEXTS[3]), found[3])


def test_masks(load: Load) -> None:
    model = load("bert-predictions", max_predictions=3)
    mask = vocabulary()["[MASK]"]
    texts = ["the [MASK] sat", "[MASK] [MASK] [MASK]", "who was [MASK] paris?", "a [MASK] [MASK]"]
    found = model.fill_mask(texts, top_k=4)
    of_masks = [words if isinstance(words[0], list) else [words] for words in found]
    assert [len(masks) for masks in of_masks] == [1, 3, 1, 2]
    for text, masks in zip(texts, of_masks, strict=True):
        ids = np.array(ids_of(text), np.int32)
        rows = np.flatnonzero(ids == mask)
        logits = model.session.run([ids], outputs=["predictions"], rows=rows).predictions
        powers = np.exp(logits.astype(np.float64))
        scores = powers / powers.sum(axis=1, keepdims=True)
        for words, row in zip(masks, scores, strict=True):
            best = np.argsort(-row)[:4].tolist()
            assert [word["token"] for word in words] == best
            np.testing.assert_allclose([word["score"] for word in words], row[best], rtol=1e-5)
            tokens = {number: token for token, number in vocabulary().items()}
            assert [word["token_str"] for word in words] == [tokens[i] for i in best]
    assert model.fill_mask(texts[0], top_k=4) == found[0]
    assert model.fill_mask([]) == []


def test_refusals(load: Load) -> None:
    model = load("bert-predictions", max_predictions=2)
    for texts, message in (
        (["a [MASK]", "no mask"], r"texts\[1\] has 0 \[MASK\], expected 1 to 2"),
        (["[MASK] [MASK] [MASK]"], r"texts\[0\] has 3 \[MASK\], expected 1 to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fill_mask(texts)
    with pytest.raises(ValueError, match="top_k is 0"):
        model.fill_mask("[MASK]", top_k=0)
