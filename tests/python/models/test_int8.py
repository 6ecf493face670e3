"""int8 on the CPU: operators against integers, models beside float32, stored weights, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference
from cases import ACTIVATIONS, GEMM_SHAPES
from checkpoints import BERT, GOLDEN, edited
from models import SPEC_OPTIONS, random_sequences, random_tensors, tiny_spec, write_model
from packhorse import Session, ops
from packhorse_weights import CheckpointError, Tensor, convert
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from precisions import ModelMaker

pytestmark = [
    pytest.mark.arm,
    pytest.mark.skipif("cpu" not in packhorse.available_devices(), reason="for the CPU backend"),
]
ON: Any = {"device": "cpu", "dtype": "int8"}
SPECS = {
    **SPEC_OPTIONS,
    "tiny": {},
    "gated": {
        "intermediate_size": 133,
        "ffn": {"kind": "gated", "activation": "silu", "up_bias": False},
    },
}


@pytest.fixture(scope="module")
def levels() -> int:
    """Levels of activations: fewer where the processor would add products in 16 bits. 1 of 255 is a
    step of its own where there are 255, and rounds to 0 where there are 127."""
    found = ops.gemm([[0, 1, 255]], [[0, 1, 0]], **ON)
    return 255 if found[0, 0] == 1 else 127


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "k", "n"), [*GEMM_SHAPES, (300, 500, 200), (700, 64, 400)])
def test_sums_are_exact(
    rng: np.random.Generator, levels: int, rows: int, k: int, n: int, threads: int
) -> None:
    """Integers that quantisation leaves as they are, the largest among them."""
    x = rng.integers(0, levels, (rows, k), endpoint=True)
    weight = rng.integers(-127, 127, (n, k), endpoint=True)
    x[:, 0], weight[:, 0] = 0, 127
    if k > 1:
        x[:, 1] = levels
    x[1::7, 2:] = levels
    weight[::5] = 127
    weight[1::5, 1:] = -127
    actual = ops.gemm(x, weight, threads=threads, **ON)
    np.testing.assert_array_equal(actual, x @ weight.T)
    bias = rng.integers(-50, 50, n)
    actual = ops.gemm(x, weight, bias, residual=x @ weight.T, threads=threads, **ON)
    np.testing.assert_allclose(actual, 2 * (x @ weight.T) + bias, rtol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 8, 16), (70, 40, 56), (200, 129, 257)])
def test_gemm(
    rng: np.random.Generator, levels: int, rows: int, k: int, n: int, activation: str
) -> None:
    x, weight = rng.normal(0.3, 1, (rows, k)), rng.normal(0, k**-0.5, (n, k))
    weight[n // 2] = 0
    bias, residual = rng.normal(0, 1, n), rng.normal(0, 1, (rows, n))
    norm = (rng.normal(1, 0.2, n), rng.normal(0, 0.2, n), 1e-5)
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    expected = reference.int8_linear(x, weight, bias, activation, levels)
    actual = ops.gemm(x, weight, bias, activation=activation, **ON)
    tolerance = 1e-4 if activation == "gelu" else 2e-5  # GELU is no better than this in int8
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    actual = ops.gemm(x, weight, bias, activation=activation, residual=residual, norm=norm, **ON)
    expected = reference.layer_norm(residual + expected, *norm)
    np.testing.assert_allclose(actual, expected, rtol=5 * tolerance, atol=5 * tolerance)


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
@pytest.mark.parametrize(
    ("rows", "hidden", "inner"), [(0, 8, 8), (1, 32, 64), (67, 33, 131), (600, 48, 192)]
)
def test_feed_forward(
    rng: np.random.Generator, levels: int, rows: int, hidden: int, inner: int, activation: str
) -> None:
    x = rng.normal(0, 1, (rows, hidden)).astype(np.float32)
    up = rng.normal(0, hidden**-0.5, (inner, hidden)), rng.normal(0, 1, inner)
    down = rng.normal(0, inner**-0.5, (hidden, inner)), rng.normal(0, 1, hidden)
    norm = (np.ones(hidden), np.zeros(hidden), 1e-5)
    actual = ops.feed_forward(x, up, down, activation=activation, **ON)
    if rows == 0:
        assert actual.shape == (0, hidden)
        return
    middle = reference.int8_linear(x, *up, activation, levels)
    expected = reference.int8_linear(middle, *down, levels=levels)
    # Inner activations may be rounded to the other side of a half: one step of one.
    step = float(np.ptp(middle, axis=1).max()) / levels * float(np.abs(down[0]).max())
    np.testing.assert_allclose(actual, expected, atol=2 * step)
    if rows > 1:
        assert np.abs(actual - expected).mean() < step / 4
    actual = ops.feed_forward(x, up, down, activation=activation, residual=x, norm=norm, **ON)
    np.testing.assert_allclose(actual, reference.layer_norm(x + expected, *norm), atol=4 * step)


def test_rows_of_one_value_and_rows_that_are_not_finite(rng: np.random.Generator) -> None:
    weight = rng.integers(-127, 127, (16, 8)).astype(np.float32)
    weight[:, 0] = 127
    x = rng.normal(0, 1, (6, 8)).astype(np.float32)
    x[0], x[1], x[2, 3], x[3, 0] = 0, -2.5, np.nan, np.inf
    x[4] *= 1e-35
    actual = ops.gemm(x, weight, **ON)
    assert not actual[0].any()
    np.testing.assert_allclose(actual[1], weight.sum(1) * -2.5, rtol=1e-5, atol=1e-4)
    assert np.isnan(actual[2:4]).all()
    assert np.abs(actual[4]).max() < 1e-30
    np.testing.assert_array_equal(actual[5:], ops.gemm(x[5:], weight, **ON))


def hidden(folder: Path, dtype: str, ids: Any, **options: Any) -> Any:
    return Session.load(folder, dtype=dtype, max_tokens=1024, **options).run(ids).hidden


@pytest.mark.parametrize("options", SPECS.values(), ids=SPECS)
def test_models(options: dict[str, Any], tmp_path: Path) -> None:
    """Near float32, and the same bits from weights that were quantised before."""
    folder = write_model(tmp_path / "model", tiny_spec(**options))
    ids = random_sequences([3, 65, 1, 0, 130])
    exact, actual = hidden(folder, "float32", ids), hidden(folder, "int8", ids)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(actual, axis=1)
    assert ((exact * actual).sum(1) / lengths).mean() > 0.99
    convert(folder, tmp_path / "quantized", quantize="int8")
    np.testing.assert_array_equal(hidden(tmp_path / "quantized", "int8", ids), actual)


@pytest.mark.parametrize(
    "name", ["bert-old-bin", "gte", "modernbert", "nomic-bert", "deberta", "deberta-v3", "qwen3"]
)
def test_families(name: str, tmp_path: Path) -> None:
    """Layers that a checkpoint holds stacked, head by head, or under old names."""
    ids = random_sequences([3, 40, 1], vocab_size=50)
    actual = hidden(GOLDEN / name, "int8", ids)
    convert(GOLDEN / name, tmp_path / "quantized", quantize="int8")
    np.testing.assert_array_equal(hidden(tmp_path / "quantized", "int8", ids), actual)


def test_stored_weights(tmp_path: Path) -> None:
    convert(BERT, tmp_path / "plain")
    convert(BERT, tmp_path / "quantized", "bfloat16", quantize="int8")
    plain = read_safetensors(tmp_path / "plain" / "model.safetensors")
    stored = read_safetensors(tmp_path / "quantized" / "model.safetensors")
    quantized = {name for name in plain if name.startswith("layers.") and plain[name].data.ndim > 1}
    assert quantized
    assert stored.keys() == plain.keys() | {f"{name}_scale" for name in quantized}
    for name, tensor in plain.items():
        if name not in quantized:
            assert stored[name].dtype == "bfloat16"
            continue
        expected, scales = reference.quantize_weight(tensor.data)
        np.testing.assert_array_equal(stored[name].data, expected)
        np.testing.assert_array_equal(stored[f"{name}_scale"].data, scales)


def test_memory_of_the_weights(make_model: ModelMaker) -> None:
    folder = make_model(hidden_size=256, intermediate_size=1024, vocab_size=10)
    sizes = {
        dtype: packhorse.plan_memory(folder, dtype=dtype).weights.bytes
        for dtype in ("float32", "int8")
    }
    assert sizes["int8"] < 0.4 * sizes["float32"]


# --- what does not fit


def test_quantized_weights_in_another_dtype(tmp_path: Path) -> None:
    convert(BERT, tmp_path / "m", quantize="int8")
    with pytest.raises(ValueError, match="'float32', but .* load this model with dtype int8"):
        Session.load(tmp_path / "m", dtype="float32")
    with pytest.raises(CheckpointError, match="is quantised already"):
        convert(tmp_path / "m", tmp_path / "n", "float32")


def test_a_quantized_layer_in_parts(tmp_path: Path) -> None:
    convert(BERT, tmp_path / "whole", quantize="int8")
    whole = read_safetensors(tmp_path / "whole" / "model.safetensors")
    scale, key = "layers.1.ffn.up.weight_scale", "layers.0.attention.key.weight"

    def load(name: str, tensors: dict[str, Tensor]) -> None:
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
        write_safetensors(tmp_path / name / "model.safetensors", tensors)
        Session.load(tmp_path / name, dtype="int8")

    with pytest.raises(ValueError, match=f"'{scale}'.* is missing"):
        load("no-scale", {name: one for name, one in whole.items() if name != scale})
    as_float = Tensor(whole[key].data.astype(np.float32), "float32")
    with pytest.raises(ValueError, match=f"'{key}' is float32.*expected int8"):
        load("float", {**whole, key: as_float})


def test_what_convert_refuses(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="quantize 'int3' is not one of int4, int8"):
        convert(BERT, tmp_path / "m", quantize="int3")

    def integers(weights: dict[str, Any]) -> None:
        name = "encoder.layer.0.output.dense.weight"
        weights[name] = Tensor(weights[name].data.astype(np.int8), "int8")

    def infinite(weights: dict[str, Any]) -> None:
        name = "encoder.layer.0.output.dense.weight"
        data = weights[name].data.copy()
        data[1, 2] = np.inf
        weights[name] = Tensor(data, "float32")

    folder = edited(BERT, tmp_path / "integers", tensors=integers)
    with pytest.raises(CheckpointError, match=r"'layers.0.ffn.down.weight' is int8; expected a fl"):
        convert(folder, tmp_path / "m", quantize="int8")
    with pytest.raises(CheckpointError, match="is int8; expected a float dtype"):
        Session.load(folder, dtype="int8")
    folder = edited(BERT, tmp_path / "infinite", tensors=infinite)
    with pytest.raises(CheckpointError, match="holds NaN or Inf, which int8 cannot"):
        convert(folder, tmp_path / "m", quantize="int8")
    with pytest.raises(ValueError, match="expected finite numbers"):
        Session.load(folder, dtype="int8")


def test_too_many_features_for_32_bits() -> None:
    with pytest.raises(ValueError, match="int8: a layer of 70000 in_features, expected at most"):
        ops.gemm(np.ones((1, 70000)), np.ones((1, 70000)), **ON)


def test_the_vocabulary_is_not_quantized(tiny_model: Path) -> None:
    """Tables and heads are those of float32."""
    tensors = random_tensors(tiny_spec())
    plan = packhorse.plan_memory(tiny_model, dtype="int8")
    sizes = {buffer.name: buffer.bytes for buffer in plan.weights.buffers}
    assert sizes["embeddings.word"] == tensors["embeddings.word"].nbytes
