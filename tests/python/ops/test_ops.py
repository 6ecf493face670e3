"""Every operator but attention (test_attention.py), on every device and dtype, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from cases import ACTIVATIONS, BATCHES, GEMM_SHAPES, HIDDEN_SIZES, POOLINGS, offsets
from combinations import pairwise
from packhorse import ops
from precisions import Precision

pytestmark = pytest.mark.arm

Random = np.random.Generator


@pytest.fixture
def on(device: str, precision: Precision) -> Any:
    return {"device": device, "dtype": precision.name}


def normal(rng: Random, precision: Precision, *shape: int, scale: float = 1) -> Any:
    return precision.round(rng.normal(0, scale, shape))


def norm_of(rng: Random, size: int) -> tuple[Any, Any, float]:
    """gamma, beta and eps; float32 in every dtype."""
    gamma, beta = rng.normal(1, 0.2, size), rng.normal(0, 0.2, size)
    return gamma.astype(np.float32), beta.astype(np.float32), 1e-5


# --- dense layers


@pytest.mark.parametrize(("rows", "k", "n"), GEMM_SHAPES)
def test_gemm_shapes(on: Any, precision: Precision, rng: Random, rows: int, k: int, n: int) -> None:
    x = normal(rng, precision, rows, k)
    weight = normal(rng, precision, n, k, scale=k**-0.5)
    precision.check(ops.gemm(x, weight, **on), reference.linear(x, weight))
    bias = rng.normal(0, 1, n).astype(np.float32)
    precision.check(ops.gemm(x, weight, bias, **on), reference.linear(x, weight, bias))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gemm_activations(on: Any, precision: Precision, rng: Random, activation: str) -> None:
    x = normal(rng, precision, 70, 40)
    weight = normal(rng, precision, 56, 40, scale=0.4)  # up to about 10 in magnitude
    bias = rng.normal(0, 1, 56).astype(np.float32)
    actual = ops.gemm(x, weight, bias, activation=activation, **on)
    precision.check(actual, reference.linear(x, weight, bias, activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_far_out(on: Any, precision: Precision, activation: str) -> None:
    """Activations have no NaN where exp and erf saturate, and no Inf but for the value itself."""
    x = precision.round(
        [[-1e38], [-1e20], [-200], [-30], [-1e-30], [0], [30], [200], [1e20], [1e38]]
    )
    actual = ops.gemm(x, np.ones((1, 1), np.float32), activation=activation, **on)
    precision.check(actual, reference.linear(x, np.ones((1, 1)), None, activation))


def test_tanh_of_small_numbers() -> None:
    """The error is relative: a small number stays what it is."""
    x = np.geomspace(1e-30, 30, 2000, dtype=np.float32)[:, None]
    for sign in (1, -1):
        found = ops.gemm(sign * x, np.ones((1, 1), np.float32), activation="tanh", device="cpu")
        expected = np.tanh(sign * x.astype(np.float64))
        assert np.abs(found / expected - 1).max() < 4e-7


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 8, 16), (65, 48, 96), (70, 30, 33)])
def test_gemm_residual_and_norm(
    on: Any,
    precision: Precision,
    rng: Random,
    rows: int,
    k: int,
    n: int,
    with_norm: bool,
) -> None:
    x, residual = normal(rng, precision, rows, k), normal(rng, precision, rows, n)
    weight = normal(rng, precision, n, k, scale=k**-0.5)
    bias = rng.normal(0, 1, n).astype(np.float32)
    norm = norm_of(rng, n) if with_norm else None
    actual = ops.gemm(x, weight, bias, activation="relu", residual=residual, norm=norm, **on)
    expected = reference.linear(x, weight, bias, "relu") + residual
    precision.check(actual, reference.layer_norm(expected, *norm) if norm else expected, steps=2)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
@pytest.mark.parametrize(
    ("rows", "hidden", "inner"), [(0, 8, 8), (1, 32, 64), (67, 33, 131), (150, 48, 192)]
)
def test_feed_forward(
    on: Any,
    precision: Precision,
    rng: Random,
    rows: int,
    hidden: int,
    inner: int,
    activation: str,
) -> None:
    x = normal(rng, precision, rows, hidden)
    up = (normal(rng, precision, inner, hidden, scale=hidden**-0.5), rng.normal(0, 1, inner))
    down = (normal(rng, precision, hidden, inner, scale=inner**-0.5), rng.normal(0, 1, hidden))
    norm = norm_of(rng, hidden)
    expected = reference.linear(reference.linear(x, *up, activation), *down)
    actual = ops.feed_forward(x, up, down, activation=activation, **on)
    precision.check(actual, expected, steps=2)
    actual = ops.feed_forward(x, up, down, activation=activation, residual=x, norm=norm, **on)
    precision.check(actual, reference.layer_norm(x + expected, *norm), steps=3)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
@pytest.mark.parametrize(
    ("rows", "hidden", "inner"), [(0, 8, 8), (1, 32, 1), (67, 33, 131), (150, 48, 192)]
)
def test_gated_feed_forward(
    on: Any,
    precision: Precision,
    rng: Random,
    rows: int,
    hidden: int,
    inner: int,
    activation: str,
) -> None:
    x = normal(rng, precision, rows, hidden)
    gate, up = (
        (normal(rng, precision, inner, hidden, scale=hidden**-0.5), rng.normal(0, 1, inner))
        for _ in range(2)
    )
    down = (normal(rng, precision, hidden, inner, scale=inner**-0.5), rng.normal(0, 1, hidden))
    product = reference.linear(x, *gate, activation) * reference.linear(x, *up)
    actual = ops.feed_forward(x, up, down, gate=gate, activation=activation, **on)
    precision.check(actual, reference.linear(product, *down), steps=3)
    product = reference.linear(x, gate[0], None, activation) * reference.linear(x, up[0])
    bare = [(weight, None) for weight, _ in (up, down, gate)]
    actual = ops.feed_forward(x, *bare[:2], gate=bare[2], activation=activation, **on)
    precision.check(actual, reference.linear(product, down[0]), steps=3)


# --- heads of queries, keys and values


@pairwise(
    sizes=[(8, 1, 1, 16, 2), (33, 3, 1, 32, 32), (48, 4, 2, 48, 14), (40, 2, 2, 64, 64)],
    lengths=BATCHES,
    norms=[False, True],
)
def test_qkv_rope(
    on: Any,
    precision: Precision,
    rng: Random,
    sizes: tuple[int, int, int, int, int],
    lengths: list[int],
    norms: bool,
) -> None:
    hidden, heads, kv_heads, head_dim, dims = sizes
    cu_seqlens = offsets(lengths)
    x = normal(rng, precision, cu_seqlens[-1], hidden)
    rows = (heads + 2 * kv_heads) * head_dim
    weight = normal(rng, precision, rows, hidden, scale=hidden**-0.5)
    bias = rng.normal(0, 1, rows).astype(np.float32)
    frequencies = reference.rope_frequencies(100.0, dims)
    options: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads}
    q, k, v = np.split(
        reference.linear(x, weight, bias).reshape(len(x), rows // head_dim, head_dim),
        [heads, heads + kv_heads],
        axis=1,
    )
    if norms:
        gammas = [rng.normal(1, 0.2, head_dim).astype(np.float32) for _ in range(2)]
        options |= {"query_norm": (gammas[0], 1e-6), "key_norm": (gammas[1], 1e-6)}
        q, k = reference.rms_norm(q, gammas[0]), reference.rms_norm(k, gammas[1])
    own = reference.positions(cu_seqlens)
    far = rng.integers(0, 10_000, len(x)).astype(np.int32)
    for at, more in ((own, {}), (far, {"position_ids": far}), (None, {})):
        turned = (
            [q, k] if at is None else [reference.rotate(one, at, frequencies) for one in (q, k)]
        )
        if at is not None:
            more["frequencies"] = frequencies
        actual = ops.qkv_rope(x, weight, bias, cu_seqlens, **options, **more, **on)
        precision.check(actual, np.concatenate([*turned, v], 1).reshape(len(x), rows), steps=3)


# --- norms, embeddings, pooling


@pytest.mark.parametrize("size", HIDDEN_SIZES)
@pytest.mark.parametrize("rows", [0, 1, 70])
def test_norms(on: Any, precision: Precision, rng: Random, rows: int, size: int) -> None:
    x, residual = normal(rng, precision, rows, size), normal(rng, precision, rows, size)
    gamma, beta, eps = norm_of(rng, size)
    for given, total in ((None, x), (residual, x.astype(np.float64) + residual)):
        actual = ops.layer_norm(x, gamma, beta, eps=eps, residual=given, **on)
        precision.check(actual, reference.layer_norm(total, gamma, beta, eps), steps=2)
        actual = ops.rms_norm(x, gamma, eps=eps, residual=given, **on)
        precision.check(actual, reference.rms_norm(total, gamma, eps), steps=2)
    actual = ops.layer_norm(x, gamma, eps=eps, **on)
    precision.check(actual, reference.layer_norm(x, gamma, None, eps))


def test_layer_norm_of_a_large_mean(device: str, rng: Random) -> None:
    """A mean 1000 times the deviation: E[x^2] - E[x]^2 in float32 would lose every digit."""
    x = (rng.normal(0, 1, (5, 768)) + 1000).astype(np.float32)
    gamma = np.ones(768, np.float32)
    actual = ops.layer_norm(x, gamma, device=device)
    np.testing.assert_allclose(actual, reference.layer_norm(x, gamma), atol=1e-3)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("size", [33, 64])
def test_embed(on: Any, precision: Precision, rng: Random, lengths: list[int], size: int) -> None:
    tables = [normal(rng, precision, rows, size) for rows in (50, 300, 3)]
    word, position, type = tables
    cu_seqlens = offsets(lengths)
    ids = rng.integers(0, 50, cu_seqlens[-1])
    type_ids = rng.integers(0, 3, ids.size)
    position_ids = rng.integers(0, 290, ids.size)
    cases: list[dict[str, Any]] = [
        {},
        {"position": position},
        {"position": position, "type": type},
        {"position": position, "type": type, "type_ids": type_ids},
        {"position": position, "position_offset": 2},
        {"position": position, "position_ids": position_ids, "position_offset": 10},
    ]
    for extra in cases:
        actual = ops.embed(ids, cu_seqlens, word, **extra, **on)
        expected = reference.embed(ids, cu_seqlens, word, **extra)
        precision.check(actual, expected)
    norm = norm_of(rng, size)
    actual = ops.embed(ids, cu_seqlens, word, position=position, type=type, norm=norm, **on)
    expected = reference.embed(ids, cu_seqlens, *tables)
    precision.check(actual, reference.layer_norm(expected, *norm), steps=2)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_pool(on: Any, precision: Precision, rng: Random, lengths: list[int], pooling: str) -> None:
    cu_seqlens = offsets(lengths)
    x = normal(rng, precision, int(cu_seqlens[-1]), 33)
    for normalize in (False, True):
        actual = ops.pool(x, cu_seqlens, pooling, normalize=normalize, **on)
        assert actual.shape == (len(lengths), 33)
        # Pooling sums in float32 and writes float32, whatever the dtype of its input.
        expected = reference.pool(x, cu_seqlens, pooling, normalize)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
        empty = np.array(lengths, int) == 0
        assert not actual[empty].any()


@pytest.mark.parametrize("columns", [0, 1, 33, 64, 1000])
@pytest.mark.parametrize("rows", [0, 1, 70])
def test_log_softmax(on: Any, precision: Precision, rng: Random, rows: int, columns: int) -> None:
    x = normal(rng, precision, rows, columns, scale=30)
    actual = ops.log_softmax(x, **on)
    assert actual.shape == x.shape
    if columns == 0:
        return
    # It is computed and written in float32, whatever the dtype of its input.
    np.testing.assert_allclose(actual, reference.log_softmax(x), rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(actual[-1:], ops.log_softmax(x[-1:], **on))


def test_log_softmax_of_logits_far_apart(on: Any) -> None:
    """Nothing overflows, what is excluded has probability 0, and a NaN stays in its row."""
    x = np.full((4, 40), -3e4)
    x[0, 37], x[1, :3], x[2, 5] = 6e4, [2, -np.inf, 2], np.nan
    actual = ops.log_softmax(x, **on)
    assert actual[0, 37] == 0
    assert (np.delete(actual[0], 37) < -8e4).all()
    np.testing.assert_allclose(actual[1, :3], [-np.log(2), -np.inf, -np.log(2)], rtol=1e-6)
    assert np.isnan(actual[2]).all()
    np.testing.assert_allclose(actual[3], -np.log(40), rtol=1e-6)


# --- arguments that do not fit


def test_errors_name_what_does_not_fit(device: str, rng: Random) -> None:
    x, weight = np.ones((3, 8)), np.ones((4, 8))
    cu_seqlens = [0, 3]
    on: Any = {"device": device}
    for call, message in [
        (lambda: ops.gemm(np.ones((3, 7)), weight, **on), "takes 8 features, the input has 7"),
        (lambda: ops.gemm(np.ones(8), weight, **on), "x has 1 dimensions, expected 2"),
        (lambda: ops.gemm(x, np.ones(8), **on), "weight has 1 dimensions, expected 2"),
        (lambda: ops.gemm(x, weight, np.ones(5), **on), "bias: expected a vector of 4"),
        (lambda: ops.gemm(x, weight, activation="swish", **on), "'swish', expected one of"),
        (lambda: ops.gemm(x, weight, residual=x, **on), r"residual is .*expected \[3, 4\]"),
        (lambda: ops.gemm(x, weight, norm=(np.ones(3), None, 1e-5), **on), "gamma: expected"),
        (
            lambda: ops.feed_forward(x, (weight, None), (weight, None), **on),
            "down takes 8 features, the input has 4",
        ),
        (
            lambda: ops.feed_forward(x, (weight, None), (weight.T, None), gate=(x, None), **on),
            r"gate has shape \(3, 8\), expected that of up, \(4, 8\)",
        ),
        (
            lambda: ops.feed_forward(x, (weight, None), (weight, None), gate=(weight, None), **on),
            r"down has shape \(4, 8\), expected 4 columns",
        ),
        (
            lambda: ops.feed_forward(
                x, (weight, None), (weight.T, None), gate=(weight, np.ones(3)), **on
            ),
            "bias of gate has shape .* expected a vector of 4",
        ),
        (
            lambda: ops.qkv_rope(x, weight, None, cu_seqlens, num_heads=1, **on),
            "weight has 4 rows, expected a multiple of 3 heads",
        ),
        (lambda: ops.layer_norm(x, np.ones(7), **on), "gamma: expected a vector of 8"),
        (lambda: ops.layer_norm(x, np.ones(8), residual=weight, **on), "residual"),
        (lambda: ops.pool(x, [0, 2], **on), r"cu_seqlens\[1\] = 2, but there are 3 tokens"),
        (lambda: ops.pool(x, [1, 3], **on), r"cu_seqlens\[0\] = 1; expected 0"),
        (lambda: ops.pool(x, [0, 2, 1, 3], **on), "cu_seqlens decreases"),
        (lambda: ops.pool(x, [], **on), "cu_seqlens is empty"),
        (lambda: ops.pool(x, cu_seqlens, "median", **on), "'median', expected one of"),
        (lambda: ops.embed([0, 4, 1], cu_seqlens, weight, **on), r"ids\[1\] = 4"),
        (lambda: ops.embed([0, 1, 1], cu_seqlens, weight, position=x[:2], **on), "3 tokens"),
        (
            lambda: ops.embed([0, 1, 1], cu_seqlens, weight, type=x, type_ids=[0, -1, 0], **on),
            r"type_ids\[1\] = -1",
        ),
        (
            lambda: ops.embed([0, 1, 1], cu_seqlens, weight, position=np.ones((9, 7)), **on),
            r"position is .*expected \[9, 8\]",
        ),
        (
            lambda: ops.embed(
                [0, 1, 1], cu_seqlens, weight, position=weight, position_offset=-1, **on
            ),
            "position_offset is -1, expected 0 to",
        ),
        (lambda: ops.gemm(x, weight, device="tpu"), "unknown device 'tpu'"),
        (
            lambda: ops.gemm(x, weight, dtype="float64", **on),
            r"unknown dtype 'float64'; known: (float32, .*, int8|float16, .*, float8) on ",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_dtypes_that_no_operator_computes_in(device: str) -> None:
    for dtype in ("int32", "uint8", "bool"):
        with pytest.raises(ValueError, match=f"unknown dtype '{dtype}'"):
            ops.gemm(np.ones((1, 1)), np.ones((1, 1)), device=device, dtype=dtype)
