"""Names that people bring from sentence-transformers: each is there, or the error says what is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, GOLDEN
from command_line import Cli, failed
from packhorse import TextModel, semantic_search, similarity
from packhorse.text.other_names import ARGUMENTS, METHODS
from tiny_tokenizer import with_kind, with_tokenizer

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    folder = with_tokenizer(BERT, tmp_path_factory.mktemp("names") / "m")
    return TextModel.load(folder, threads=1)


def test_names(model: TextModel) -> None:
    for name, ours in METHODS.items():
        with pytest.raises(AttributeError, match=f"no attribute '{name}': use "):
            getattr(model, name)
        first = ours.partition("(")[0]
        assert first not in METHODS
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        model.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_arguments(model: TextModel) -> None:
    wrong: dict[str, Any]
    for name in ("batch_size", "convert_to_tensor", "normalize_embeddings", "precision"):
        wrong = {name: 1}
        with pytest.raises(TypeError, match=f"embed.. got an unexpected .* '{name}': .{{5,}}"):
            model.embed("a", **wrong)
    wrong = {"nothing": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'$"):
        model.embed("a", **wrong)
    assert not ARGUMENTS.keys() & packhorse.Sampling.__annotations__.keys()


def test_a_progress_bar(model: TextModel, capsys: pytest.CaptureFixture[str]) -> None:
    model.embed(["a", "b"], show_progress_bar=True)
    assert "2 of 2" in capsys.readouterr().err
    model.embed(["a", "b"])
    assert capsys.readouterr() == ("", "")


def test_coroutines(model: TextModel) -> None:
    async def run() -> list[Any]:
        return await asyncio.gather(*(model.embed_async(text) for text in ("cat", "dog")))

    for found, text in zip(asyncio.run(run()), ("cat", "dog"), strict=True):
        np.testing.assert_array_equal(found, model.embed(text))
    with pytest.raises(ValueError, match="score: this model gives embeddings"):
        asyncio.run(model.score_async("a", ["b"]))


@pytest.mark.parametrize("texts", [None, 3, b"a", {"a": 1}, {"a", "b"}])
def test_what_are_no_texts(model: TextModel, texts: Any) -> None:
    message = "texts is .*, expected a text, or texts in an order"
    with pytest.raises(ValueError, match=message):
        model.embed(texts)
    with pytest.raises(ValueError, match=message):
        asyncio.run(model.embed_async(texts))


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity(function: Any) -> None:
    """Against float64."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 7)), rng.normal(size=(4, 7))
    difference = a[:, None] - b
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    expected = {
        "cosine": a @ b.T / lengths,
        "dot": a @ b.T,
        "euclidean": -np.sqrt((difference**2).sum(-1)),
        "manhattan": -np.abs(difference).sum(-1),
    }[function]
    np.testing.assert_allclose(similarity(a, b, function), expected, rtol=0, atol=2e-6)
    found = semantic_search(a, b, top_k=2, function=function)
    for row, best in zip(expected, found, strict=True):
        order = np.argsort(-row)[:2]
        assert [one["corpus_id"] for one in best] == order.tolist()
        np.testing.assert_allclose([one["score"] for one in best], row[order], atol=2e-6)


def test_similarity_of_a_model(model: TextModel, tmp_path: Path) -> None:
    vectors = model.embed(["cat", "dog"])
    np.testing.assert_allclose(model.similarity(vectors, vectors), similarity(vectors, vectors))
    folder = with_tokenizer(BERT, tmp_path / "m")
    file = folder / "config_sentence_transformers.json"
    file.write_text('{"similarity_fn_name": "dot"}')
    with TextModel.load(folder, threads=1) as other:
        np.testing.assert_array_equal(other.similarity([[2, 0]], [[3, 1]]), [[6]])
    for wrong, message in (((vectors, vectors[:, :3]), "dimensions"), ((1.0, vectors), "shape")):
        with pytest.raises(ValueError, match=message):
            similarity(*wrong)


def test_what_dir_shows() -> None:
    shown = {name for name in dir(packhorse) if not name.startswith("__")}
    assert shown == {*packhorse.__all__, "ops", "ray"}


def test_embedding_with_a_model_that_generates(cli: Cli, tmp_path: Path) -> None:
    """The command refuses it as the method does, unless a pooling is given."""
    folder = with_kind(GOLDEN / "generation" / "llama", tmp_path / "m", "bytes")
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n")
    assert failed(cli("embed", folder, lines), "generates text", "--pooling")
    assert cli("embed", folder, lines, "--pooling", "last").status == 0
