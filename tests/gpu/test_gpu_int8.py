"""int8 on CUDA: products against integers, layers against the recipe in NumPy, models beside the
CPU's and beside float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import pytest
import reference
import reference_encoder
import torch
from cases import ACTIVATIONS, offsets
from gpu_support import DEVICE, PRECISIONS, using_kernels
from models import SPEC_OPTIONS, random_sequences, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session, ops
from packhorse_weights import convert
from test_gpu_invariance import LENGTHS, POSITIONS, SPECS, Case
from test_gpu_models import SHAPES, as_seen
from test_gpu_session import driver_calls

Array = npt.NDArray[Any]
ON: dict[str, Any] = {"device": DEVICE, "dtype": "int8"}
HALF = 2.0**-11
ROWS = (0, 1, 9, 64, 65, 127, 129, 1000)
WIDTHS = [(8, 8), (16, 16), (24, 40), (48, 24), (312, 936), (384, 1536), (768, 768), (3072, 768)]


def halves(x: Array) -> Array:
    """x as the device sees it, in float32."""
    return x.astype(np.float16).astype(np.float32)


def recipe(
    x: Array, weight: Array, bias: Any = None, activation: str = "none"
) -> tuple[Array, Array]:
    """A layer in float64 by rows of bytes made in float32, and what the epilogue may be off by."""
    low = x.min(1, keepdims=True)
    size = x.max(1, keepdims=True) - low
    inverse = np.divide(np.float32(255), size, where=size > 0, out=np.zeros_like(size))
    # The device adds a large number to the product in one rounding, to nearest, ties to even.
    q = np.rint((x - low).astype(np.float64) * inverse.astype(np.float64))
    scale = (size / np.float32(255)).astype(np.float64)
    most = np.abs(weight).max(1, keepdims=True)
    step = most / np.float32(127)
    integers = np.rint(np.divide(weight, step, where=step > 0, out=np.zeros_like(weight)))
    columns = (step.astype(np.float64) * integers.sum(1, keepdims=True)).T
    sums = (q @ integers.T.astype(np.float64)) * (scale * step.T)
    offset = low * columns
    result = sums + offset if bias is None else sums + offset + bias
    slack = 4 * 2.0**-24 * (np.abs(sums) + np.abs(offset) + np.abs(result))
    return reference.ACTIVATIONS[activation](result), slack


def check(found: Array, expected: Array, slack: Any = 0.0) -> None:
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= slack + HALF * np.abs(expected) + 1e-6).all()


@pytest.mark.parametrize(("k", "n"), WIDTHS)
def test_sums_are_exact(k: int, n: int) -> None:
    """Integers that quantisation leaves as they are: results are rounded once, to float16."""
    random = np.random.default_rng(k + n)
    weight = random.integers(-2, 2, (n, k), endpoint=True).astype(np.float32)
    weight[:, 0] = 127
    bias = random.integers(-50, 50, n).astype(np.float32)
    for rows in ROWS:
        x = random.integers(0, 255, (rows, k), endpoint=True).astype(np.float32)
        x[:, 0], x[:, 1] = 0, 255
        exact = (x.astype(np.int64) @ weight.T.astype(np.int64)) + bias.astype(np.int64)
        assert (np.abs(exact) < 65504).all()
        found = ops.gemm(x, weight, bias, **ON)
        np.testing.assert_array_equal(found, exact.astype(np.float64).astype(np.float16))


def test_the_largest_products() -> None:
    """The ends of both ranges, with either sign: they cancel but for the last columns."""
    for k in (16, 40, 768, 8192):
        signs = np.where(np.arange(k) % 2, -127, 127).astype(np.float32)
        weight = np.stack(
            [signs, -signs, np.full(k, 127, np.float32), np.full(k, -127, np.float32)]
        )
        weight = np.concatenate([weight, weight])
        x = np.full((3, k), 255, np.float32)
        x[0, -1] = 0  # 255 * 127 or its negative is left over
        x[1, 1:] = 0
        x[2] = 0
        x[2, -2:] = 255
        exact = x.astype(np.int64) @ weight.T.astype(np.int64)
        found = ops.gemm(x, weight, **ON)
        small = np.abs(exact) < 65504
        assert small[:, :2].all()
        np.testing.assert_array_equal(
            found[small], exact.astype(np.float64)[small].astype(np.float16)
        )
        assert np.isinf(found[~small]).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("k", "n"), WIDTHS)
def test_layers(k: int, n: int, activation: str) -> None:
    random = np.random.default_rng(k + n)
    weight = random.normal(0, k**-0.5, (n, k)).astype(np.float32)
    weight[n // 2] = 0
    bias = random.normal(0, 1, n).astype(np.float32)
    gamma, beta = random.normal(1, 0.2, n), random.normal(0, 0.2, n)
    norm = (gamma.astype(np.float32), beta.astype(np.float32), 1e-5)
    for rows in ROWS:
        x = halves(random.normal(0.3, 1, (rows, k)) * np.exp(random.normal(0, 1, (rows, 1))))
        residual = halves(random.normal(0, 1, (rows, n)))
        if rows == 0:
            assert ops.gemm(x, weight, bias, **ON).shape == (0, n)
            continue
        expected, slack = recipe(x, weight, bias, activation)
        slack = slack + 3e-5  # error of the activations (runtime/cuda/common/activations.cuh)
        check(ops.gemm(x, weight, bias, activation=activation, **ON), expected, slack)
        found = ops.gemm(x, weight, bias, activation=activation, residual=residual, **ON)
        check(found, expected + residual, slack)
        found = ops.gemm(x, weight, bias, activation=activation, residual=residual, norm=norm, **ON)
        expected = reference.layer_norm(expected + residual, *norm)
        assert np.linalg.norm(found - expected) < 2e-3 * np.linalg.norm(expected)


def test_wide_rows() -> None:
    random = np.random.default_rng(5)
    for k in (8200, 16384, 65536):
        x = halves(random.normal(0, 1, (3, k)))
        weight = random.normal(0, k**-0.5, (8, k)).astype(np.float32)
        check(ops.gemm(x, weight, **ON), *recipe(x, weight))
    with pytest.raises(ValueError, match="a layer of 65544 in_features, expected at most 65536"):
        ops.gemm(np.ones((1, 65544)), np.ones((8, 65544)), **ON)


def test_rows_of_one_value_and_rows_that_are_not_finite() -> None:
    random = np.random.default_rng(1)
    weight = random.integers(-127, 127, (16, 8)).astype(np.float32)
    weight[:, 0] = 127
    x = halves(random.normal(0, 1, (6, 8)))
    x[0], x[1], x[2, 3], x[3, 0], x[4, 7] = 0, -2.5, np.nan, np.inf, -np.inf
    found = ops.gemm(x, weight, **ON)
    assert not found[0].any()
    np.testing.assert_allclose(found[1], weight.sum(1) * -2.5, rtol=2 * HALF, atol=1e-3)
    assert np.isnan(found[2:5]).all()
    np.testing.assert_array_equal(found[5:], ops.gemm(x[5:], weight, **ON))


def test_the_bits_of_a_row_are_its_own() -> None:
    """Whatever tile computes it, and whatever its neighbours hold."""
    random = np.random.default_rng(1)
    for k, n in [(768, 2304), (3072, 768), (24, 40)]:
        x = halves(random.normal(0, 1, (1500, k)))
        weight = random.normal(0, k**-0.5, (n, k)).astype(np.float32)
        whole = ops.gemm(x, weight, **ON)
        for rows in (1, 9, 64, 100, 128, 300, 700):
            np.testing.assert_array_equal(ops.gemm(x[:rows], weight, **ON), whole[:rows])
            np.testing.assert_array_equal(ops.gemm(x[-rows:], weight, **ON), whole[-rows:])
        x[3], x[5, 7] = np.nan, np.inf
        spoiled = ops.gemm(x, weight, **ON)
        assert np.isnan(spoiled[[3, 5]]).all()
        others = np.delete(np.arange(1500), [3, 5])
        np.testing.assert_array_equal(spoiled[others], whole[others])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
def test_feed_forward(activation: str, gated: bool) -> None:
    random = np.random.default_rng(2)
    for rows, hidden, inner in [(0, 8, 16), (1, 32, 64), (67, 48, 144), (300, 320, 1200)]:
        x = halves(random.normal(0, 1, (rows, hidden)))
        layers = {
            name: (
                random.normal(0, shape[1] ** -0.5, shape).astype(np.float32),
                random.normal(0, 0.3, shape[0]).astype(np.float32),
            )
            for name, shape in (
                ("gate", (inner, hidden)),
                ("up", (inner, hidden)),
                ("down", (hidden, inner)),
            )
        }
        gate = {"gate": layers["gate"]} if gated else {}
        found = ops.feed_forward(
            x, layers["up"], layers["down"], activation=activation, **gate, **ON
        )
        assert found.shape == (rows, hidden)
        if rows == 0:
            continue
        between, _ = recipe(x, *layers["gate" if gated else "up"], activation)
        if gated:
            between = between * recipe(x, *layers["up"])[0]
        expected, _ = recipe(halves(between), *layers["down"])
        # A value on the other side of a half is another byte, which is 0.7 % of a single row here.
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < (0.03 if rows == 1 else 0.01), (rows, hidden, inner)


def test_rotated_heads() -> None:
    random = np.random.default_rng(3)
    heads, size, hidden = 3, 32, 96
    x = halves(random.normal(0, 1, (150, hidden)))
    weight = random.normal(0, hidden**-0.5, (3 * heads * size, hidden)).astype(np.float32)
    cu_seqlens = np.array([0, 50, 150], np.int32)
    frequencies = reference.rope_frequencies(10000.0, size)
    options: dict[str, Any] = {"num_heads": heads, "num_kv_heads": heads}
    found = ops.qkv_rope(x, weight, None, cu_seqlens, frequencies=frequencies, **options, **ON)
    expected, _ = recipe(x, weight)
    positions = np.concatenate([np.arange(50), np.arange(100)])
    turned = expected[:, : 2 * heads * size].reshape(150, -1, size)
    turned = reference.rotate(turned, positions, frequencies).reshape(150, -1)
    expected = np.concatenate([turned, expected[:, 2 * heads * size :]], axis=1)
    assert np.linalg.norm(found - expected) < 3e-3 * np.linalg.norm(expected)


MODELS = {
    **SHAPES,
    **{f"model-{name}": changes for name, changes in SPECS.items()},
    **{f"option-{name}": changes for name, changes in SPEC_OPTIONS.items()},
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path) -> None:
    """A session is about as far from exact results as the CPU's is, and so near to that."""
    spec = tiny_spec(**MODELS[name])
    tensors = random_tensors(spec)
    folder = write_model(tmp_path, spec, tensors)
    session = Session.load(folder, DEVICE, "int8", max_tokens=512, kv_tokens=0)
    on_cpu = Session.load(folder, "cpu", "int8", max_tokens=512, kv_tokens=0)
    exact_layers = as_seen(tensors, PRECISIONS["float16"])
    for lengths in ([2, 130, 0, 1, 40], [1] * 9, [0, 0], []):
        cu_seqlens = offsets(lengths)
        ids = np.concatenate([np.zeros(0, np.int32), *random_sequences(lengths)])
        found = session.run((ids, cu_seqlens)).hidden
        near = on_cpu.run((ids, cu_seqlens)).hidden
        assert found.shape == near.shape
        if not found.size:
            continue
        exact = reference_encoder.encoder(spec, exact_layers, ids, cu_seqlens)
        size = np.linalg.norm(exact)
        errors = [np.linalg.norm(x - exact) / size for x in (found, near)]
        apart = np.linalg.norm(found - near) / size
        assert errors[0] <= 1.5 * errors[1] + 4e-3
        assert apart <= 2 * errors[1] + 4e-3


def test_weights_that_are_stored_in_int8(tmp_path: Path) -> None:
    spec = tiny_spec(hidden_size=128, num_heads=2, intermediate_size=256)
    folder = write_model(tmp_path / "model", spec)
    ids = random_sequences([3, 65, 1, 0, 130])
    convert(folder, tmp_path / "quantized", quantize="int8")
    expected = Session.load(folder, DEVICE, "int8").run(ids).hidden
    for dtype in ("int8", None):
        session = Session.load(tmp_path / "quantized", DEVICE, dtype)
        np.testing.assert_array_equal(session.run(ids).hidden, expected)


@pytest.fixture(scope="module", params=SPECS)
def case(
    kernels: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    spec = tiny_spec(positions=POSITIONS, **SPECS[request.param])
    return Case(write_model(tmp_path_factory.mktemp("int8"), spec), "int8")


def test_invariance(case: Case) -> None:
    everything = list(range(len(LENGTHS)))
    for shift in everything:
        case.check(everything[shift:] + everything[:shift])
    case.check([4] * 15)
    for total in (16, 100, 129, 257, 513, 1500, 2049, 4000):
        lengths = [min(700, total - begin) for begin in range(0, total, 700)]
        case.check([2, 0, *random_sequences(lengths, seed=total)])
    for max_tokens in (1000, 9000):
        session = case.load(max_tokens=max_tokens, max_sequences=50)
        found = session.run_many(case.sequences)
        assert [part.tobytes() for part in found.unpack()] == [bits[0] for bits in case.alone]


def test_recordings_and_device_arrays(kernels: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, tiny_spec(hidden_size=64, num_heads=2, intermediate_size=128))
    session = Session.load(folder, DEVICE, "int8", max_tokens=1024, max_sequences=64)
    for lengths in ([7], [3, 40, 0, 129, 9], [1] * 60, [300, 300, 5]):
        rows = random_sequences(lengths)
        ids, cu_seqlens = np.concatenate(rows), offsets(lengths)
        found = session.run((ids, cu_seqlens)).hidden
        positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
        eager = session.run(PackedTokens(ids, cu_seqlens, position_ids=positions)).hidden
        there = tuple(torch.as_tensor(x, device="cuda") for x in (ids, cu_seqlens))
        on_device = session.run(there, outputs=["hidden"], on_device=False).hidden
        assert found.tobytes() == eager.tobytes() == on_device.tobytes()


def test_a_plan_is_what_is_used(tmp_path: Path) -> None:
    spec = tiny_spec(hidden_size=384, num_heads=6, intermediate_size=1536, num_layers=6)
    folder = write_model(tmp_path, spec)
    plan = packhorse.plan_memory(folder, DEVICE, "int8", max_tokens=1024)
    session = Session.load(folder, DEVICE, "int8", max_tokens=1024, memory_limit=plan.total_bytes)
    assert session.memory_plan == plan
    half = packhorse.plan_memory(folder, DEVICE, "float16", max_tokens=1024)
    assert plan.weights.bytes < 0.55 * half.weights.bytes

    def work() -> None:
        for length in (1, 100, 300):
            session.run([np.zeros(length, np.int32)] * 3)

    calls = driver_calls(work, tmp_path / "runs.json")
    assert calls
    memory = {name for name in calls if "Malloc" in name or "Free" in name or "Alloc" in name}
    assert not memory, dict(calls)


def test_refusals(tmp_path: Path) -> None:
    decoder = write_model(tmp_path / "decoder", tiny_spec(**SPECS["decoder"], heads={"lm": {}}))
    with pytest.raises(RuntimeError, match="int8 on a CUDA device is for models that encode"):
        Session.load(decoder, DEVICE, "int8", max_tokens=64)


def test_portable_kernels_give_the_same_bits() -> None:
    """Products of bytes have one kernel on every device."""
    random = np.random.default_rng(4)
    x, weight = halves(random.normal(0, 1, (70, 64))), random.normal(0, 0.1, (48, 64))
    found = ops.gemm(x, weight, **ON)
    with using_kernels("portable"):
        np.testing.assert_array_equal(ops.gemm(x, weight, **ON), found)
