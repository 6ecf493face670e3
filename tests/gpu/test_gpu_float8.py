"""Models and dense layers in float8 on Hopper, compared with the recipe in NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import pytest
import reference
import reference_encoder
import torch
from cases import offsets
from gpu_support import DEVICE, PRECISIONS, using_kernels
from models import random_sequences, random_tensors, tiny_spec, with_defaults, write_model
from packhorse import PackedTokens, Session, ops
from reference_low_precision import FLOAT8, Bounds, LowPrecision, e4m3
from test_gpu_invariance import LENGTHS, POSITIONS, SPECS, Case
from test_gpu_models import FOLDERS, SHAPES, as_seen
from test_gpu_session import driver_calls

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability(0) != (9, 0), reason="needs compute capability 9.0"
)
Array = npt.NDArray[Any]
FLOAT8_OPTIONS: dict[str, Any] = {"device": DEVICE, "dtype": "float8"}
HALF = 2.0**-11


def quantized(x: Array) -> tuple[Array, Array]:
    """Rows as e4m3 and their scales, by the rules to the bit."""
    most = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(2.0**-64))
    most = most.astype(np.float32)
    return e4m3(x * (np.float32(448) / most)), most * np.float32(1 / 448)


def product(x: Array, weight: Array, bias: Any = None) -> tuple[Array, Array]:
    """x W^T + bias of quantised operands in float64, and what the sums of wgmma may be off by:
    every 32 products and the sum so far lose 2^-13 of the largest of them."""
    (a, a_scale), (b, b_scale) = quantized(x), quantized(weight)
    scale = a_scale.astype(np.float64) * b_scale.astype(np.float64).T
    exact = (a.astype(np.float64) @ b.astype(np.float64).T) * scale
    slack = (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T) * scale
    steps = -(-x.shape[1] // 32)
    return exact if bias is None else exact + bias, slack * steps * 2.0**-13


def random_matrix(random: np.random.Generator, rows: int, columns: int, scale: float) -> Array:
    """Values of float16 in rows of different magnitudes, one of them zeros."""
    magnitude = np.exp(random.normal(0, 1, (rows, 1)))
    values = (scale * magnitude * random.normal(0, 1, (rows, columns))).astype(np.float16)
    values[1:2] = 0
    return values.astype(np.float32)


@pytest.mark.parametrize(
    ("k", "n"),
    [(16, 16), (48, 24), (320, 936), (384, 1536), (768, 768), (3072, 768), (1024, 4096)],
)
def test_dense_layers(k: int, n: int) -> None:
    random = np.random.default_rng(k + n)
    weight = random.normal(0, k**-0.5, (n, k)).astype(np.float32)
    bias = random.normal(0, 1, n).astype(np.float32)
    for rows in (0, 1, 17, 64, 65, 127, 129, 1000):
        x = random_matrix(random, rows, k, 1)
        residual = random.normal(0, 1, (rows, n)).astype(np.float16).astype(np.float32)
        expected, slack = product(x, weight, bias)
        found = ops.gemm(x, weight, bias, **FLOAT8_OPTIONS)
        assert (np.abs(found - expected) <= slack + HALF * np.abs(expected) + 1e-6).all()
        found = ops.gemm(x, weight, bias, residual=residual, **FLOAT8_OPTIONS)
        expected = expected + residual
        assert (np.abs(found - expected) <= slack + HALF * np.abs(expected) + 1e-6).all()


def test_a_layer_with_a_norm() -> None:
    random = np.random.default_rng(0)
    x = random_matrix(random, 200, 256, 1)
    weight = random.normal(0, 1 / 16, (320, 256)).astype(np.float32)
    gamma, beta = random.normal(1, 0.2, 320), random.normal(0, 0.2, 320)
    norm = (gamma.astype(np.float32), beta.astype(np.float32), 1e-5)
    found = ops.gemm(x, weight, norm=norm, residual=np.ones((200, 320)), **FLOAT8_OPTIONS)
    expected = reference.layer_norm(product(x, weight)[0] + 1, *norm)
    assert np.linalg.norm(found - expected) < 2e-3 * np.linalg.norm(expected)


def test_the_bits_of_a_row_are_its_own() -> None:
    """Whatever tile computes it, and whatever its neighbours hold."""
    random = np.random.default_rng(1)
    for k, n in [(768, 2304), (3072, 768)]:
        x = random_matrix(random, 1500, k, 1)
        weight = random.normal(0, k**-0.5, (n, k)).astype(np.float32)
        whole = ops.gemm(x, weight, **FLOAT8_OPTIONS)
        for rows in (1, 9, 64, 100, 128, 300, 700):
            np.testing.assert_array_equal(
                ops.gemm(x[:rows], weight, **FLOAT8_OPTIONS), whole[:rows]
            )
        x[3], x[5, 7] = np.nan, np.inf
        spoiled = ops.gemm(x, weight, **FLOAT8_OPTIONS)
        assert np.isnan(spoiled[[3, 5]]).all()
        others = np.delete(np.arange(1500), [3, 5])
        np.testing.assert_array_equal(spoiled[others], whole[others])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
def test_feed_forward(activation: str, gated: bool) -> None:
    random = np.random.default_rng(2)
    for rows, hidden, inner in [(1, 32, 64), (67, 48, 144), (300, 320, 1200), (1000, 384, 1536)]:
        x = random.normal(0, 1, (rows, hidden)).astype(np.float16).astype(np.float32)
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
        first = product(x, *layers["gate" if gated else "up"])[0]
        between = reference.ACTIVATIONS[activation](first)
        if gated:
            between = between * product(x, *layers["up"])[0]
        expected = product(between.astype(np.float32), *layers["down"])[0]
        gate = {"gate": layers["gate"]} if gated else {}
        found = ops.feed_forward(
            x, layers["up"], layers["down"], activation=activation, **gate, **FLOAT8_OPTIONS
        )
        # Here each row has a scale of its own between the layers, there all rows have one.
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < (0.1 if gated else 0.05), (rows, hidden, inner)


def test_rotated_heads() -> None:
    random = np.random.default_rng(3)
    heads, size, hidden = 3, 32, 96
    x = random_matrix(random, 150, hidden, 1)
    weight = random.normal(0, hidden**-0.5, (3 * heads * size, hidden)).astype(np.float32)
    cu_seqlens = np.array([0, 50, 150], np.int32)
    frequencies = reference.rope_frequencies(10000.0, size)
    options: dict[str, Any] = {"num_heads": heads, "num_kv_heads": heads}
    found = ops.qkv_rope(
        x, weight, None, cu_seqlens, frequencies=frequencies, **options, **FLOAT8_OPTIONS
    )
    expected, _ = product(x, weight)
    positions = np.concatenate([np.arange(50), np.arange(100)])
    turned = expected[:, : 2 * heads * size].reshape(150, -1, size)
    turned = reference.rotate(turned, positions, frequencies).reshape(150, -1)
    expected = np.concatenate([turned, expected[:, 2 * heads * size :]], axis=1)
    assert np.linalg.norm(found - expected) < 2e-3 * np.linalg.norm(expected)


MODELS = {
    **{name: changes for name, changes in SHAPES.items() if "compressed" not in name},
    **{f"model-{name}": changes for name, changes in SPECS.items() if name != "BERT-base"},
    "heads-of-32": {"hidden_size": 384, "num_heads": 12, "intermediate_size": 1536},
    "heads-of-64": {"hidden_size": 384, "num_heads": 6, "intermediate_size": 1536},
    "heads-of-128": {"hidden_size": 256, "num_heads": 2, "intermediate_size": 512},
}


def recipe_of(spec: Any, tensors: Any) -> LowPrecision:
    """Recipe of a session in float8: attention writes float8 for some sizes of heads alone."""
    spec = with_defaults(spec)
    stored = -(-spec["head_dim"] // 8) * 8
    writes = stored % 16 == 0 and stored <= 64
    recipe = FLOAT8 if writes else replace(FLOAT8, attention=None)
    return LowPrecision(recipe, tensors, Bounds(spec, tensors))


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path) -> None:
    """A session is about as far from exact as the recipe is. It is apart from that, too: where
    values lie beside the middle of two numbers, other roundings before decide. The recipe with
    float32 beside is up to 0.9 times its error apart from itself with float16."""
    spec = tiny_spec(**MODELS[name])
    tensors = random_tensors(spec)
    folder = write_model(tmp_path, spec, tensors)
    session = Session.load(folder, DEVICE, "float8", max_tokens=512, kv_tokens=0)
    seen = as_seen(tensors, PRECISIONS["float16"])
    layers = {n: v if n.startswith("layers.") else seen[n] for n, v in tensors.items()}
    for lengths in ([2, 130, 0, 1, 40], [1] * 9, [0, 0], []):
        cu_seqlens = offsets(lengths)
        ids = np.concatenate([np.zeros(0, np.int32), *random_sequences(lengths)])
        found = session.run((ids, cu_seqlens)).hidden
        exact = reference_encoder.encoder(spec, layers, ids, cu_seqlens)
        assert found.shape == exact.shape
        if not exact.size:
            continue
        recipe = recipe_of(spec, layers)
        rounded = reference_encoder.encoder(spec, layers, ids, cu_seqlens, arithmetic=recipe)
        size = np.linalg.norm(exact)
        errors = [np.linalg.norm(a - b) / size for a, b in ((found, exact), (rounded, exact))]
        apart = np.linalg.norm(found - rounded) / size
        assert errors[0] <= 1.4 * errors[1] + 2e-3
        assert apart <= 1.2 * errors[1] + 2e-3


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_golden(folder: Path) -> None:
    """Folders as users have them, compared with stored outputs of transformers."""
    golden = np.load(folder / "golden.npz")
    batch = PackedTokens(golden["ids"], golden["cu_seqlens"], golden["type_ids"])
    session = Session.load(folder, DEVICE, "float8", max_tokens=1024, kv_tokens=0)
    found = session.run(batch, outputs=["embedding"]).embedding
    expected = golden["embedding"]
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    cosines = (found * expected).sum(1) / norms
    # Rows of 32 to 64 random numbers lose more than those of models that are used. In mT5's case,
    # operands of dense layers rounded to e4m3 in PyTorch leave 0.926 where all else is float32.
    assert cosines.min() >= (0.9 if folder.name == "mt5" else 0.93)
    assert np.median(cosines) >= 0.98


@pytest.fixture(scope="module", params=SPECS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    spec = tiny_spec(positions=POSITIONS, **SPECS[request.param])
    return Case(write_model(tmp_path_factory.mktemp("float8"), spec), "float8")


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


def test_a_plan_is_what_is_used(tmp_path: Path) -> None:
    spec = tiny_spec(hidden_size=384, num_heads=6, intermediate_size=1536, num_layers=6)
    folder = write_model(tmp_path, spec)
    plan = packhorse.plan_memory(folder, DEVICE, "float8", max_tokens=1024)
    session = Session.load(folder, DEVICE, "float8", max_tokens=1024, memory_limit=plan.total_bytes)
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
    folder = write_model(tmp_path / "model", tiny_spec())
    with using_kernels("portable"), pytest.raises(RuntimeError, match="needs compute capability 9"):
        Session.load(folder, DEVICE, "float8", max_tokens=64)
    with pytest.raises(ValueError, match="does not quantise rows of 24 columns"):
        ops.gemm(np.ones((2, 24)), np.ones((8, 24)), **FLOAT8_OPTIONS)
    compressed = tiny_spec(**SHAPES["compressed-and-causal"])
    with pytest.raises(RuntimeError, match="float8: models with compressed attention"):
        Session.load(
            write_model(tmp_path / "compressed", compressed), DEVICE, "float8", max_tokens=64
        )
    tensors = random_tensors(tiny_spec())
    tensors["layers.0.attention.norm.weight"] *= np.float32(1e38)
    broken = write_model(tmp_path / "broken", tiny_spec(), tensors)
    with pytest.raises(ValueError, match="behind the norm layers.0.attention.norm may give has no"):
        Session.load(broken, DEVICE, "float8", max_tokens=64)
    decoder = write_model(tmp_path / "decoder", tiny_spec(**SPECS["decoder"], heads={"lm": {}}))
    with pytest.raises(RuntimeError, match="float8 is for models that encode"):
        Session.load(decoder, DEVICE, "float8", max_tokens=64)
