"""The reference of low precision, against tables, exact arithmetic and the int8 sessions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference
from models import random_sequences, random_tensors, tiny_spec, write_model
from reference_encoder import encoder
from reference_low_precision import (
    Calibration,
    Form,
    LowPrecision,
    Recipe,
    e4m3,
    e4m3_bytes,
    e4m3_values,
    hopper_sum,
    quantize,
)

UINT8 = Form("uint8", "row")
LIKE_THE_CPU = Recipe(Form("int8"), UINT8, UINT8, UINT8)


def test_e4m3_is_the_nearest_value_of_the_table() -> None:
    """Among all float32 with few bits of mantissa, and beside every midpoint."""
    values = e4m3_values()[:127].astype(np.float64)
    assert values[0] == 0
    assert values[1] == 2**-9
    assert values[8] == 2**-6
    assert values[-1] == 448
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([values, middles, np.nextafter(middles.astype(np.float32), np.float32(0))])
    x = np.concatenate([x, np.nextafter(middles.astype(np.float32), np.float32(1000))])
    x = np.concatenate([x, np.geomspace(1e-5, 2000, 5000)]).astype(np.float32)
    distance = np.abs(np.minimum(x.astype(np.float64), 448)[:, None] - values)
    nearest = distance.min(axis=1, keepdims=True)
    even = np.where(distance == nearest, np.arange(127) % 2 == 0, False)
    expected = np.where(even.any(axis=1), values[even.argmax(axis=1)], values[distance.argmin(1)])
    np.testing.assert_array_equal(e4m3(x), expected)
    np.testing.assert_array_equal(e4m3(-x), -expected)


def test_e4m3_of_what_is_no_number() -> None:
    np.testing.assert_array_equal(e4m3([np.inf, -np.inf, np.nan]), [448, -448, np.nan])


def test_bytes_stand_for_their_values() -> None:
    values = e4m3_values()
    finite = np.isfinite(values)
    assert finite.sum() == 254
    np.testing.assert_array_equal(e4m3_bytes(values[finite]), np.arange(256)[finite])


def test_e4m3_as_ml_dtypes_has_it(rng: np.random.Generator) -> None:
    ml_dtypes: Any = pytest.importorskip("ml_dtypes")
    x = (rng.normal(0, 1, 10000) * 2.0 ** rng.integers(-12, 8, 10000)).astype(np.float32)
    x = np.clip(x, -448, 448)
    np.testing.assert_array_equal(e4m3_bytes(x), x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


@pytest.mark.parametrize("per", ["tensor", "row", 32, 48])
@pytest.mark.parametrize(
    ("number", "steps"), [("e4m3", 14), ("int8", 127), ("uint8", 255), ("int4", 7), ("uint4", 15)]
)
def test_rounding_stays_within_half_a_step(
    rng: np.random.Generator, number: Any, steps: int, per: Any
) -> None:
    x = rng.normal(0.5, 1, (6, 128)).astype(np.float32)
    x[2] = 0
    found = quantize(x, Form(number, per))
    groups = -(-128 // per) if isinstance(per, int) else 1
    assert found.scale.shape == (1 if per == "tensor" else 6, groups)
    columns = per if isinstance(per, int) else 128
    for i in range(6):
        for begin in range(0, 128, columns):
            some = x if per == "tensor" else x[i, begin : begin + columns]
            size = np.ptp(some) if number.startswith("u") else np.abs(some).max()
            error = np.abs(
                found.values()[i, begin : begin + columns] - x[i, begin : begin + columns]
            )
            # The coarsest step of e4m3 is 32 of 448.
            assert error.max() <= size / steps / 2 + 1e-6


def test_static_scales_saturate() -> None:
    found = quantize([[1.4, -500, 126.6]], Form("int8"), largest=127)
    np.testing.assert_array_equal(found.values(), [[1, -127, 127]])


@pytest.mark.parametrize("interval", [32, 128, None])
def test_sums_of_hopper(rng: np.random.Generator, interval: int | None) -> None:
    """Sums computed by hand: a number that is below the 14 bits of the sum so far is lost, unless
    the sum starts anew; and sums of few bits are exact."""
    x = np.zeros((1, 256), np.float32)
    x[0, 0], x[0, 128:] = 256, 2**-6
    ones = np.ones((1, 256), np.float32)
    exact = 256 + 128 * 2**-6
    assert hopper_sum(x, ones, interval)[0, 0] == (256 if interval is None else exact)
    few = rng.integers(-3, 4, (2, 5, 256)).astype(np.float32)
    np.testing.assert_array_equal(hopper_sum(few[0], few[1], interval), few[0] @ few[1].T)


def test_short_intervals_leave_smaller_errors(rng: np.random.Generator) -> None:
    x, w = (quantize(np.abs(rng.normal(0, 1, (8, 1024))), Form("e4m3")).q for _ in range(2))
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    errors = [float(np.abs(hopper_sum(x, w, n) / exact - 1).max()) for n in (32, 128, None)]
    assert 0 < errors[0] < errors[1] < errors[2] < 2**-5


def _packed(lengths: list[int]) -> packhorse.PackedTokens:
    return packhorse.pack(random_sequences(lengths))


def _hidden(recipe: Recipe, spec: Any, tensors: Any, batch: Any, **options: Any) -> Any:
    by = LowPrecision(recipe, tensors, **options)
    return encoder(spec, tensors, batch.ids, batch.cu_seqlens, arithmetic=by)


DECODER: dict[str, Any] = {
    "type_vocab_size": 0,
    "head_dim": 12,
    "num_kv_heads": 2,
    "max_seqlen": 300,
    "norm": {"kind": "rms", "placement": "pre", "eps": 1e-6, "embeddings": False},
    "positions": {"kind": "none"},
    "attention": {"mask": "causal", "rope": {"theta": 1000.0}},
    "ffn": {"kind": "gated", "activation": "silu", "up_bias": False},
}
WINDOW = {"attention": {"mask": "causal", "local": {"window": 5, "layers": [1]}}}


@pytest.mark.parametrize("changes", [{}, DECODER, WINDOW], ids=["encoder", "decoder", "window"])
def test_without_rounding_it_is_the_exact_reference(changes: dict[str, Any]) -> None:
    spec = tiny_spec(**changes)
    tensors, batch = random_tensors(spec), _packed([3, 40, 1])
    expected = encoder(spec, tensors, batch.ids, batch.cu_seqlens)
    found = _hidden(Recipe(), spec, tensors, batch)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    calibration = Calibration()
    encoder(spec, tensors, batch.ids, batch.cu_seqlens, arithmetic=calibration)
    smoothed = _hidden(Recipe(smooth=0.5), spec, tensors, batch, calibration=calibration)
    np.testing.assert_allclose(smoothed, expected, rtol=2e-5, atol=2e-5)


def test_int8_is_that_of_the_runtime(tmp_path: Path) -> None:
    """The distance of the session to the simulation is far below that of either to float32. In one
    layer: what falls on the other side of a half makes other roundings of all that follows."""
    if "vnni" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no VNNI, and fewer steps")
    spec = tiny_spec(num_layers=1)
    tensors, batch = random_tensors(spec), _packed([3, 40, 25, 1])
    folder = write_model(tmp_path / "model", spec, tensors)
    session = packhorse.Session.load(folder, dtype="int8", max_tokens=128, threads=1)
    found = session.run(batch).hidden
    simulated = _hidden(LIKE_THE_CPU, spec, tensors, batch)
    exact = encoder(spec, tensors, batch.ids, batch.cu_seqlens)
    error = np.sqrt(np.square(found - simulated).mean())
    assert error < 0.25 * np.sqrt(np.square(found - exact).mean())


def test_recipes_in_order_of_their_bits() -> None:
    """Each recipe takes more away than the one before."""
    spec = tiny_spec()
    tensors, batch = random_tensors(spec), _packed([30, 40, 25, 50])
    exact = encoder(spec, tensors, batch.ids, batch.cu_seqlens)
    e4m3_row = Form("e4m3")
    recipes = [
        Recipe(other="float16"),
        Recipe(other="bfloat16"),
        Recipe(Form("int8"), other="bfloat16"),
        LIKE_THE_CPU,
        Recipe(e4m3_row, e4m3_row, e4m3_row, e4m3_row, other="float16"),
        Recipe(Form("int4", 16)),
    ]
    errors = [
        float(np.square(_hidden(one, spec, tensors, batch) - exact).mean()) for one in recipes
    ]
    assert errors == sorted(errors)
    assert errors[0] > 0


@pytest.mark.parametrize("per", ["row", 32, 48])
def test_scales_of_groups_in_the_sums_of_hopper(rng: np.random.Generator, per: Any) -> None:
    """Sums that are computed group by group are those of the values."""
    x = rng.normal(0, 1, (5, 96)) * rng.uniform(0.1, 10, 96)
    weight = rng.normal(0, 1, (7, 96)).astype(np.float32)
    recipe = Recipe(Form("e4m3"), inner=Form("e4m3", per))
    found = [
        LowPrecision(one, {}).dense("layers.0.ffn.down", x, weight, None, "none")
        for one in (recipe, replace(recipe, interval=32))
    ]
    assert not np.array_equal(*found)
    np.testing.assert_allclose(*found, atol=1e-3 * np.abs(found[0]).max())


def test_cache_of_8_bits(rng: np.random.Generator) -> None:
    spec = tiny_spec(**DECODER)
    tensors, batch = random_tensors(spec), _packed([30, 4])
    exact = _hidden(Recipe(), spec, tensors, batch)
    head = spec["head_dim"]
    errors = [
        float(
            np.square(
                _hidden(Recipe(cache=Form(number, head)), spec, tensors, batch) - exact
            ).mean()
        )
        for number in ("int8", "e4m3")
    ]
    assert 0 < errors[0] < errors[1] < 0.01 * float(np.square(exact).mean())


def test_bfloat16_is_the_reference_of_the_operators() -> None:
    x = np.float32(1 + 2**-8)
    assert LowPrecision(Recipe(other="bfloat16"), {}).residual(x) == reference.bfloat16(x)
