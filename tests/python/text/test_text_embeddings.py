"""Embeddings of texts, and what becomes of them after the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse.text import quantize_embeddings
from packhorse_weights import convert
from packhorse_weights.weight_files import read_file
from text_cases import MINILM_TEXTS, PROMPTS, TEXTS
from tiny_tokenizer import with_tokenizer

pytest.importorskip("tokenizers")

CASES = [*TEXTS, "dog", "a cat", *(f"{'mat ' * i}at" for i in range(20))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> packhorse.TextModel:
    """A model that normalises."""
    folder = with_tokenizer(GOLDEN / "bert-gelu", tmp_path_factory.mktemp("text") / "model")
    return packhorse.TextModel.load(folder)


@pytest.fixture(scope="module")
def golden() -> Any:
    return np.load(GOLDEN / "text.npz")


def test_minilm_as_sentence_transformers(minilm: Path, golden: Any) -> None:
    model = packhorse.TextModel.load(minilm)
    assert model.max_length == 256
    texts = list(MINILM_TEXTS)
    for found, name in (
        (model.embed(texts), "plain"),
        (model.embed(texts, prompt=PROMPTS["query"]), "query"),
        (model.embed(texts, truncate_dim=50, normalize=True), "short"),
    ):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, golden[name], atol=1e-6, rtol=0)


def test_dimensions_and_length(model: packhorse.TextModel, tmp_path: Path) -> None:
    rows = model.embed(CASES).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)  # the model normalises
    cut = rows[:, :5]
    unit = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    found = model.embed(CASES, truncate_dim=5, normalize=True)
    np.testing.assert_allclose(found, unit, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(model.embed(CASES[2], truncate_dim=5, normalize=True), found[2])
    for normalize in (None, False):
        found = model.embed(CASES, truncate_dim=5, normalize=normalize)
        np.testing.assert_array_equal(found, cut.astype(np.float32))
    assert model.embed(CASES, truncate_dim=32).shape == (len(CASES), 32)
    for dim in (0, 33, -1):
        with pytest.raises(ValueError, match=f"truncate_dim {dim} is not between 1 and 32"):
            model.embed(CASES, truncate_dim=dim)

    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "other")
    other = packhorse.TextModel.load(folder)  # does not normalise
    rows = other.embed(CASES).astype(np.float64)
    assert (np.linalg.norm(rows, axis=1) > 2).all()
    np.testing.assert_array_equal(other.embed(CASES, truncate_dim=5), rows[:, :5].astype("f4"))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(other.embed(CASES, normalize=True), unit, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "binary", "ubinary"])
def test_dtypes(model: packhorse.TextModel, dtype: str) -> None:
    texts = CASES * (1 + 100 // len(CASES))  # int8 wants a hundred
    rows = model.embed(texts, truncate_dim=12)
    found = model.embed(iter(texts), truncate_dim=12, dtype=dtype)
    np.testing.assert_array_equal(found, quantize_embeddings(rows, dtype))
    assert found.shape == (len(texts), 2 if dtype.endswith("binary") else 12)
    assert model.embed([], truncate_dim=12, dtype=dtype).shape == (0, *found.shape[1:])
    assert model.embed([], truncate_dim=12, dtype=dtype).dtype == found.dtype
    if dtype.endswith("int8"):
        ranges = np.stack([rows.min(0), rows.max(0)])
        one = model.embed(texts[5], truncate_dim=12, dtype=dtype, ranges=ranges)
        np.testing.assert_array_equal(one, found[5])


def test_quantize_as_sentence_transformers(golden: Any) -> None:
    some, ranges = golden["some"], golden["ranges"]
    for kind in ("int8", "uint8", "binary", "ubinary"):
        if kind.endswith("binary"):
            found = quantize_embeddings(some, kind)
        else:
            with pytest.warns(UserWarning, match="ranges of 7 embeddings say little about others"):
                found = quantize_embeddings(some, kind)
        assert found.dtype == golden[kind].dtype
        np.testing.assert_array_equal(found, golden[kind])
    for kind in ("int8", "uint8"):
        found = quantize_embeddings(some, kind, ranges)
        np.testing.assert_array_equal(found, golden[f"{kind}_ranges"])
    np.testing.assert_array_equal(quantize_embeddings(some, "float16"), some.astype(np.float16))


@pytest.mark.parametrize(
    ("dtype", "ranges", "message"),
    [
        ("int4", None, "dtype 'int4' is not one of float32, float16, int8"),
        ("int8", None, r"1 are too few, expected 100 or more: give ranges=np.stack\(\[e.min"),
        ("int8", np.zeros((2, 31)), r"ranges have shape \(2, 31\), expected \(2, 32\)"),
        ("uint8", np.stack([np.ones(32), np.zeros(32)]), "the lowest and the highest"),
        ("binary", np.zeros((2, 32)), "dtype 'binary' takes no ranges"),
    ],
)
def test_dtype_errors(model: packhorse.TextModel, dtype: str, ranges: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.embed(["a"], dtype=dtype, ranges=ranges)
    with pytest.raises(ValueError, match=r"embeddings are int64\[3\], expected floats \[N, dims\]"):
        quantize_embeddings(np.arange(3), "int8")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_too_few_for_ranges(model: packhorse.TextModel, dtype: str) -> None:
    for texts, count in (("a cat", 1), (CASES[:2], 2), (["a"] * 99, 99), (iter(CASES[:5]), 5)):
        with pytest.raises(ValueError, match=f"{count} are too few, expected 100 or more"):
            model.embed(texts, dtype=dtype)
    with pytest.raises(ValueError, match="one embedding has no ranges"):
        quantize_embeddings(np.ones((1, 3), np.float32), dtype)
    assert model.embed((["a", "b"] * 50)[:100], dtype=dtype).shape == (100, 32)


def test_prompts_that_pooling_leaves_out(tmp_path: Path) -> None:
    """Texts without a prompt have the embeddings of any other model; with one, the tokens behind it
    are pooled."""
    folder = with_tokenizer(GOLDEN / "bert-dense", tmp_path / "m")
    before = packhorse.TextModel.load(folder)
    plain = before.embed(CASES)
    config = {"pooling_mode": "mean", "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    model = packhorse.TextModel.load(folder)
    np.testing.assert_array_equal(model.embed(CASES), plain)
    prompt, texts = "a cat ", [text for text in CASES if len(text) < 60]
    size = model.tokenizer.encode([prompt], None).ids[0].size - 1
    tokens = model.tokenizer.encode([prompt + text for text in texts], None)
    hidden = model.encoder_session.run(tokens.ids, outputs=["hidden"])
    rows = np.split(hidden.hidden.astype(np.float64), hidden.cu_seqlens[1:-1])
    means = np.stack([row[size:].mean(0) for row in rows])
    files = [folder / "2_Dense" / "model.safetensors", folder / "3_Dense" / "pytorch_model.bin"]
    first, second = (read_file(file)[0] for file in files)
    inner = np.tanh(means @ first["linear.weight"].data.T + first["linear.bias"].data)
    expected = inner @ second["linear.weight"].data.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = model.embed(texts, prompt=prompt)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(model.embed(texts[0], prompt=prompt), found[0])
    converted = packhorse.TextModel.load(convert(folder, tmp_path / "converted"))
    np.testing.assert_array_equal(converted.embed(texts, prompt=prompt), found)
