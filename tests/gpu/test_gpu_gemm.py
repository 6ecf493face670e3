"""Dense layers and feed-forward blocks with every epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpu_support import (
    ACTIVATIONS,
    Norm,
    Precision,
    layer_norm,
    linear,
    norm_of,
    to_host,
    vector,
)
from packhorse import ops
from torch import Generator, Tensor

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = [  # (in_features, out_features)
    (8, 8),
    (24, 40),
    (40, 1000),
    (64, 64),
    (312, 936),
    (384, 1536),
    (768, 768),
    (768, 2304),
    (3072, 768),
    (1024, 4096),
    (1000, 17000),  # over 32 MB, so computed in panels of columns
]
ROWS = [0, 1, 17, 64, 1000]


def gemm(
    precision: Precision,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    norm: Norm | None = None,
    activation: str = "none",
) -> Any:
    return ops.gemm(
        to_host(x),
        to_host(weight),
        to_host(bias),
        activation=activation,
        residual=to_host(residual),
        norm=None if norm is None else (to_host(norm[0]), to_host(norm[1]), norm[2]),
        **precision.options(),
    )


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_shapes(precision: Precision, random: Generator, k: int, n: int) -> None:
    weight = precision.normal(random, n, k, scale=k**-0.5)
    bias = vector(random, n)
    for rows in ROWS:
        x, residual = precision.normal(random, rows, k), precision.normal(random, rows, n)
        precision.check(gemm(precision, x, weight), linear(x, weight))
        expected = linear(x, weight, bias)
        precision.check(gemm(precision, x, weight, bias), expected)
        actual = gemm(precision, x, weight, bias, residual=residual)
        precision.check(actual, expected + residual)


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogues(
    precision: Precision,
    random: Generator,
    activation: str,
    with_residual: bool,
    with_norm: bool,
) -> None:
    for rows, k, n in [(1, 8, 16), (65, 48, 96), (200, 320, 264), (700, 768, 768)]:
        x = precision.normal(random, rows, k)
        weight = precision.normal(random, n, k, scale=2 * k**-0.5)  # outputs of up to 10
        bias = vector(random, n)
        residual = precision.normal(random, rows, n) if with_residual else None
        norm = norm_of(random, n) if with_norm else None
        actual = gemm(
            precision, x, weight, bias, activation=activation, residual=residual, norm=norm
        )
        expected = linear(x, weight, bias, activation)
        if residual is not None:
            expected += residual
        if norm is None:
            precision.check(actual, expected)
        else:
            # The norm scales the rounding of the product together with the rows, by up to 3 here.
            precision.check(actual, layer_norm(expected, *norm), steps=4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_far_out(precision: Precision, activation: str) -> None:
    """Where exp and erf saturate there is no NaN, and no Inf unless the value itself is one."""
    large = 6e4 if precision.name == "float16" else 1e38
    values = [0, 1e-7, 0.5, 3, 6, 12, 30, 200, 6e4, large]
    x = torch.zeros(2 * len(values), 8)
    x[:, 0] = torch.tensor([*values, *(-value for value in values)])
    weight = torch.zeros(8, 8)
    weight[:, 0] = 1
    rounded, ones = precision.round(x), precision.round(weight)
    actual = gemm(precision, rounded, ones, activation=activation)
    precision.check(actual, linear(rounded, ones, None, activation))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
def test_feed_forward(precision: Precision, random: Generator, activation: str) -> None:
    for rows, hidden, inner in [(0, 8, 8), (1, 32, 64), (67, 40, 136), (300, 312, 1200)]:
        x = precision.normal(random, rows, hidden)
        up = (precision.normal(random, inner, hidden, scale=hidden**-0.5), vector(random, inner))
        down = (precision.normal(random, hidden, inner, scale=inner**-0.5), vector(random, hidden))
        norm = norm_of(random, hidden)
        expected = linear(linear(x, *up, activation), *down)
        host = [(to_host(weight), to_host(bias)) for weight, bias in (up, down)]
        options: dict[str, Any] = {"activation": activation, **precision.options()}
        actual = ops.feed_forward(to_host(x), *host, **options)
        precision.check(actual, expected, steps=2)
        gamma, beta, eps = norm
        actual = ops.feed_forward(
            to_host(x),
            *host,
            residual=to_host(x),
            norm=(to_host(gamma), to_host(beta), eps),
            **options,
        )
        precision.check(actual, layer_norm(x + expected, *norm), steps=4)


def test_many_rows(precision: Precision, random: Generator) -> None:
    x, weight = precision.normal(random, 20000, 768), precision.normal(random, 768, 768, scale=0.04)
    precision.check(gemm(precision, x, weight), linear(x, weight))


ALONE = [(24, 40), (312, 936), (768, 768), (768, 3072), (3072, 768), (1024, 4096)]


@pytest.mark.parametrize(("k", "n"), ALONE)
def test_rows_do_not_depend_on_one_another(
    precision: Precision, random: Generator, k: int, n: int
) -> None:
    """The bits are the same from 1 to 6000 rows, with other tiles, in other numbers and orders."""
    x = to_host(precision.normal(random, 6000, k))
    weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
    residual = to_host(precision.normal(random, 6000, n))
    for with_residual in (False, True):
        options: dict[str, Any] = {"activation": "gelu", **precision.options()}
        if with_residual:
            options["norm"] = (np.ones(n), np.zeros(n), 1e-5)

        def rows(part: slice, with_residual: bool = with_residual, **options: Any) -> Any:
            given = residual[part] if with_residual else None
            return ops.gemm(x[part], weight, residual=given, **options)

        whole = rows(slice(None), **options)
        for begin, end in [(0, 1), (5999, 6000), (1, 65), (63, 190), (100, 700), (1234, 4321)]:
            part = rows(slice(begin, end), **options)
            assert part.tobytes() == whole[begin:end].tobytes(), (begin, end, with_residual)


def test_not_finite_rows_stay_alone(precision: Precision, random: Generator) -> None:
    x = to_host(precision.normal(random, 200, 256))
    weight = to_host(precision.normal(random, 512, 256, scale=0.06))
    clean = ops.gemm(x, weight, **precision.options())
    for poison in (np.nan, np.inf):
        poisoned = x.copy()
        poisoned[77] = poison
        actual = ops.gemm(poisoned, weight, **precision.options())
        others = np.arange(200) != 77
        assert actual[others].tobytes() == clean[others].tobytes()
        assert not np.isfinite(actual[77]).any()


def test_sizes_that_do_not_suit(precision: Precision) -> None:
    for k, n in [(12, 16), (16, 12), (1, 8)]:
        with pytest.raises(ValueError, match="multiples of 8"):
            ops.gemm(np.ones((2, k)), np.ones((n, k)), **precision.options())
    assert (ops.gemm(np.ones((2, 16)), np.ones((8, 16)), **precision.options()) == 16).all()
