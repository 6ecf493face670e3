"""The rows of docs/coming_from.md, each beside the library that it names. Skipped where
sentence-transformers is not installed (`nox -s test-peers`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse import TextModel
from packhorse.text import quantize_embeddings
from serve_room import make_models

pytest.importorskip("tokenizers")
peer: Any = pytest.importorskip("sentence_transformers")

import torch  # noqa: E402
import transformers  # noqa: E402

TEXTS = ["the cat sat on the mat", "a dog", "where was paris"]
PAIRS = [("the cat", text) for text in TEXTS]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory.mktemp("models"))


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=TOLERANCE, atol=TOLERANCE)


def scores(rows: Any) -> list[Any]:
    return [[one["score"] for one in row] for row in rows]


def test_embeddings(minilm: Path) -> None:
    model, other = TextModel.load(minilm), peer.SentenceTransformer(str(minilm), device="cpu")
    plain = other.encode(TEXTS)
    close(model.embed(TEXTS), plain)
    close(model.embed(TEXTS) @ model.embed(TEXTS).T, other.similarity(plain, plain))
    close(model.embed(TEXTS), other.encode_query(TEXTS))
    close(model.embed(TEXTS), other.encode_document(TEXTS))
    close(model.embed(TEXTS, prompt="ask: "), other.encode(TEXTS, prompt="ask: "))
    cut: dict[str, Any] = {"truncate_dim": 16}
    close(model.embed(TEXTS, **cut), other.encode(TEXTS, **cut))
    unit = other.encode(TEXTS, **cut, normalize_embeddings=True)
    close(model.embed(TEXTS, **cut, normalize=True), unit)
    tokens = other.encode(TEXTS, output_value="token_embeddings")
    ids = model.tokenizer.encode(TEXTS, None).ids
    for rows, expected in zip(model.session.run(ids).unpack(), tokens, strict=True):
        close(rows, expected.numpy())
    assert model.max_length == other.max_seq_length
    assert model.session.embedding_size == other.get_embedding_dimension()
    ranges = np.stack([plain.min(axis=0), plain.max(axis=0)])
    from sentence_transformers.util import quantize_embeddings as theirs

    for dtype in ("int8", "uint8", "binary", "ubinary"):
        given = ranges if dtype.endswith("int8") else None
        expected = theirs(plain, dtype, ranges=given)
        np.testing.assert_array_equal(quantize_embeddings(plain, dtype, given), expected)  # type: ignore[arg-type]


def test_modules(minilm: Path) -> None:
    from sentence_transformers.models import Normalize, Pooling, Transformer

    transformer = Transformer(str(minilm))
    modules = [transformer, Pooling(384, pooling_mode="cls"), Normalize()]
    other = peer.SentenceTransformer(modules=modules, device="cpu")
    model = TextModel.load(minilm, pooling="cls", normalize=True)
    close(model.embed(TEXTS), other.encode(TEXTS))


def test_cross_encoders(folders: dict[str, Path]) -> None:
    model = TextModel.load(folders["reranker"])
    other = peer.CrossEncoder(str(folders["reranker"]), device="cpu")
    close(model.score_pairs(PAIRS), other.predict(PAIRS))
    for name, made in (("sigmoid", torch.nn.Sigmoid()), ("none", torch.nn.Identity())):
        expected = other.predict(PAIRS, activation_fn=made)
        close(model.score_pairs(PAIRS, activation=name), expected)  # type: ignore[arg-type]
    ranked = sorted(other.rank("the cat", TEXTS), key=lambda one: one["corpus_id"])
    close(model.score("the cat", TEXTS), [one["score"] for one in ranked])


def test_cross_encoders_of_several_labels(folders: dict[str, Path]) -> None:
    model = TextModel.load(folders["classifier"])
    other = peer.CrossEncoder(str(folders["classifier"]), device="cpu")

    def by_label(**options: Any) -> list[Any]:
        found = model.classify(PAIRS, top_k=None, **options)
        rows = [{one["label"]: one["score"] for one in row} for row in found]
        return [[row[label] for label in model.labels] for row in rows]

    close(by_label(), other.predict(PAIRS))
    close(by_label(activation="softmax"), other.predict(PAIRS, apply_softmax=True))


def test_sparse_encoders(folders: dict[str, Path]) -> None:
    from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling

    model = TextModel.load(folders["splade"])
    modules = [MLMTransformer(str(folders["splade"])), SpladePooling(pooling_strategy="max")]
    other = peer.SparseEncoder(modules=modules, device="cpu")
    expected = other.encode(TEXTS).to_dense().numpy()
    for (ids, weights), row in zip(model.embed_sparse(TEXTS), expected, strict=True):
        assert ids.tolist() == np.flatnonzero(row).tolist()
        close(weights, row[ids])


def test_pipelines(folders: dict[str, Path], minilm: Path) -> None:
    def pipeline(task: str, folder: Path, **options: Any) -> Any:
        return transformers.pipeline(task, model=str(folder), device="cpu", **options)

    labels = pipeline("text-classification", folders["classifier"])
    model = TextModel.load(folders["classifier"])
    close(scores(model.classify(TEXTS, top_k=2)), scores(labels(TEXTS, top_k=2)))
    for name in ("softmax", "sigmoid", "none"):
        found = model.classify(TEXTS, top_k=2, activation=name)  # type: ignore[call-overload]
        close(scores(found), scores(labels(TEXTS, top_k=2, function_to_apply=name)))
    for strategy in ("none", "simple", "first", "average", "max"):
        tagger = pipeline("token-classification", folders["tagger"], aggregation_strategy=strategy)
        found = TextModel.load(folders["tagger"]).classify_tokens(
            TEXTS,
            aggregation_strategy=strategy,  # type: ignore[call-overload]
        )
        for row, expected in zip(found, tagger(TEXTS), strict=True):
            close([one["score"] for one in row], [one["score"] for one in expected])
    words = TextModel.load(folders["filler"], max_predictions=4).fill_mask(
        "the [MASK] sat", top_k=3
    )
    filled = pipeline("fill-mask", folders["filler"])("the [MASK] sat", top_k=3)
    assert [one["token"] for one in words] == [one["token"] for one in filled]
    close([one["score"] for one in words], [one["score"] for one in filled])
    session = packhorse.Session.load(minilm)
    ids = TextModel.load(minilm).tokenizer.encode(TEXTS[:1], None).ids
    close(session.run(ids).hidden, pipeline("feature-extraction", minilm)(TEXTS[0])[0])
