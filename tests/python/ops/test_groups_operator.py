"""Dense layers whose weights are quantised in groups (`ops.gemm_groupwise`), on the CPU. Reference:
NumPy float64 on the values that the weights stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from packhorse import ops
from reference_low_precision import groups_weight, random_groups

# bits, group, whether there are minima
FORMS = [
    (4, 32, False),
    (4, 32, True),
    (4, 64, False),
    (4, 128, True),
    (4, 1024, False),
    (8, 16, False),
    (8, 16, True),
    (8, 32, True),
    (8, 128, False),
]
SHAPES = [(0, 8, 8), (1, 1, 1), (1, 40, 8), (7, 33, 17), (65, 130, 72), (130, 264, 200)]


@pytest.mark.parametrize(("rows", "k", "n"), SHAPES)
@pytest.mark.parametrize(("bits", "group", "minima"), FORMS)
def test_products(
    rng: np.random.Generator, bits: int, group: int, minima: bool, rows: int, k: int, n: int
) -> None:
    """x is rounded to int8 in blocks of 32, of which integers up to 127 lose nothing."""
    weight = random_groups(rng, n, k, bits, group, minima)
    x = rng.integers(-126, 127, (rows, k)).astype(np.float32)
    x[:, ::32] = 127
    bias = rng.normal(0, 1, n).astype(np.float32)
    found = ops.gemm_groupwise(x, *weight, bias, bits=bits, group=group, activation="silu")
    expected = reference.linear(x, groups_weight(weight, bits, group), bias, "silu")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    residual = rng.normal(0, 1, (rows, n)).astype(np.float32)
    found = ops.gemm_groupwise(x, *weight, bits=bits, group=group, residual=residual)
    expected = residual + reference.linear(x, groups_weight(weight, bits, group))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_gate(rng: np.random.Generator) -> None:
    weight = random_groups(rng, 96, 64, 4, 32, True)
    x = rng.integers(-126, 127, (9, 64)).astype(np.float32)
    x[:, ::32] = 127
    sums = reference.linear(x, groups_weight(weight, 4, 32)).reshape(9, 3, 2, 16)
    gate, other = (sums[:, :, i].reshape(9, 48) for i in (0, 1))
    found = ops.gemm_groupwise(x, *weight, bits=4, group=32, activation="silu", gated=True)
    # Sums are rounded to float32 once more for a gate.
    np.testing.assert_allclose(
        found, reference.ACTIVATIONS["silu"](gate) * other, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(("rows", "k", "n"), SHAPES)
@pytest.mark.parametrize(("bits", "group", "minima"), [(4, 32, True), (8, 16, False)])
def test_input_order(
    rng: np.random.Generator, bits: int, group: int, minima: bool, rows: int, k: int, n: int
) -> None:
    weight = random_groups(rng, n, k, bits, group, minima)
    order = rng.permutation(k)
    x = rng.integers(-126, 127, (rows, k)).astype(np.float32)
    x[:, order[::32]] = 127
    found = ops.gemm_groupwise(x, *weight, bits=bits, group=group, input_order=order)
    values = np.empty((n, k))
    values[:, order] = groups_weight(weight, bits, group)
    np.testing.assert_allclose(found, reference.linear(x, values), rtol=1e-4, atol=1e-3)
    ordered = ops.gemm_groupwise(x[:, order], *weight, bits=bits, group=group)
    np.testing.assert_array_equal(found, ordered)
    for row in range(rows):
        alone = ops.gemm_groupwise(x[[row]], *weight, bits=bits, group=group, input_order=order)
        np.testing.assert_array_equal(alone[0], found[row])


def test_input_order_of_a_gate(rng: np.random.Generator) -> None:
    weight = random_groups(rng, 96, 75, 4, 32, True)
    x = rng.normal(0, 1, (9, 75)).astype(np.float32)
    order = rng.permutation(75)
    options: dict[str, Any] = {"bits": 4, "group": 32, "activation": "silu", "gated": True}
    np.testing.assert_array_equal(
        ops.gemm_groupwise(x, *weight, **options, input_order=order),
        ops.gemm_groupwise(x[:, order], *weight, **options),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits is 3, expected 4 or 8"),
        ({"group": 48}, "group is 48, expected a power of two from 32 on"),
        ({"bits": 8, "group": 8}, "group is 8, expected a power of two from 16 on"),
        ({"group": 64}, r"scales: expected the shape \[32, 1\]"),
        ({"values": np.full((32, 64), 16.0)}, "values has 16, expected integers from 0 to 15"),
        ({"minima": np.zeros((32, 3))}, r"minima: expected the shape \[32, 2\]"),
        ({"x": np.zeros((1, 63))}, "takes 64 features, the input has 63"),
        ({"gated": True, "residual": np.zeros((1, 16))}, "takes no residual"),
        ({"input_order": np.zeros(64, int)}, "each number from 0 to 63 once"),
        ({"input_order": np.arange(63)}, "each number from 0 to 63 once"),
        ({"input_order": np.zeros(64)}, "input_order has dtype float64, expected integers"),
    ],
)
def test_refusals(rng: np.random.Generator, changes: dict[str, Any], message: str) -> None:
    values, scales, _ = random_groups(rng, 32, 64, 4, 32, False)
    given = {"x": np.zeros((1, 64)), "values": values, "scales": scales, "bits": 4, "group": 32}
    with pytest.raises(ValueError, match=message):
        ops.gemm_groupwise(**(given | changes))
