"""`packhorse.ops.add_lora` on every device and dtype, against float64, and row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from packhorse import ops
from precisions import Precision

pytestmark = pytest.mark.arm

Random = np.random.Generator


@pytest.fixture
def on(device: str, precision: Precision) -> Any:
    return {"device": device, "dtype": precision.name}


def make(
    rng: Random, precision: Precision, rows: int, k: int, n: int, rank: int, parts: int = 1
) -> dict[str, Any]:
    """Arguments of three slots, the second of which has fewer ranks."""
    num_slots = 3

    def normal(scale: float, *shape: int) -> Any:
        return precision.round(rng.normal(0, scale, shape))

    return {
        "out": normal(1, rows, n),
        "x": normal(1, rows, k),
        "a": normal(k**-0.5, num_slots, parts, rank, k),
        "b": normal(rank**-0.5, num_slots, rank, n),
        "slots": rng.integers(-1, num_slots, rows),
        "ranks": [rank, max(rank // 2, 1), rank],
    }


def expected_of(given: dict[str, Any]) -> Any:
    out = given["out"].astype(np.float64)
    columns = np.repeat(given.get("parts", np.zeros(out.shape[1], np.int64)), 8)[: out.shape[1]]
    for row, slot in enumerate(given["slots"]):
        if slot < 0:
            continue
        rank = given["ranks"][slot]
        inner = given["a"][slot].astype(np.float64) @ given["x"][row]  # [parts, ranks]
        added = given["b"][slot][:rank].astype(np.float64) * inner[columns][:, :rank].T
        out[row] += added.sum(0)
    return out


@pytest.mark.parametrize(
    ("rows", "k", "n", "rank"),
    [(1, 8, 8, 1), (5, 64, 24, 4), (33, 136, 1032, 16), (17, 2056, 40, 3), (9, 48, 2104, 40)],
)
def test_against_float64(
    on: Any, precision: Precision, rng: Random, rows: int, k: int, n: int, rank: int
) -> None:
    given = make(rng, precision, rows, k, n, rank)
    precision.check(ops.add_lora(**given, **on), expected_of(given), steps=2)


def test_sizes_of_the_cpu(precision: Precision, rng: Random) -> None:
    """Sizes are no whole vectors of the CPU."""
    given = make(rng, precision, 6, 37, 51, 5)
    precision.check(ops.add_lora(**given, dtype=precision.name), expected_of(given), steps=2)


@pytest.mark.parametrize("rank", [1, 8, 20])
def test_layers_of_several_parts(on: Any, precision: Precision, rng: Random, rank: int) -> None:
    given = make(rng, precision, 12, 40, 96, rank, parts=3)
    given["parts"] = np.array([0, 0, 2, 2, 1, 1, 2, 2, 0, 0, 1, 1])
    precision.check(ops.add_lora(**given, **on), expected_of(given), steps=2)


def test_the_same_bits_whatever_rows_are_beside(on: Any, precision: Precision, rng: Random) -> None:
    given = make(rng, precision, 40, 264, 176, 12, parts=2)
    given["parts"] = np.repeat([0, 1, 0], [6, 8, 8])
    together = ops.add_lora(**given, **on)
    for row, slot in enumerate(given["slots"]):
        one = given | {name: given[name][row : row + 1] for name in ("out", "x", "slots")}
        np.testing.assert_array_equal(ops.add_lora(**one, **on)[0], together[row])
        if slot < 0:
            np.testing.assert_array_equal(together[row], given["out"][row])
    order = rng.permutation(40)
    turned = given | {name: np.asarray(given[name])[order] for name in ("out", "x", "slots")}
    np.testing.assert_array_equal(ops.add_lora(**turned, **on), together[order])


def test_no_rows(on: Any, precision: Precision, rng: Random) -> None:
    given = make(rng, precision, 0, 16, 16, 2)
    assert ops.add_lora(**given, **on).shape == (0, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": [3, 0]}, r"slots\[0\] is 3, expected -1 to 2"),
        ({"slots": [0]}, r"slots has shape \(1,\), expected \(2,\)"),
        ({"ranks": [1, 5, 1]}, r"ranks\[1\] is 5, expected 0 to 4"),
        ({"parts": [0, 1]}, r"parts\[1\] is 1, expected 0 to 0"),
        ({"b": np.zeros((3, 5, 16))}, r"b \(3, 5, 16\): expected \[slots, parts, rank"),
        ({"a": np.zeros((3, 1, 4, 9))}, r"a is float32\[12, 9\], expected \[12, 8\]"),
        ({"out": np.zeros((2, 8))}, r"out is float32\[2, 8\], expected \[2, 16\]"),
    ],
)
def test_errors(rng: Random, changes: dict[str, Any], message: str) -> None:
    given = make(rng, Precision("float32", 0), 2, 8, 16, 4)
    with pytest.raises(ValueError, match=message):
        ops.add_lora(**given | changes)
