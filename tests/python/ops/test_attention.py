"""Variable-length attention on every device and dtype, against float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import reference
from cases import BATCHES, HEAD_DIMS, offsets
from combinations import pairwise
from packhorse import ops
from precisions import Precision

Random = np.random.Generator


@pytest.fixture(scope="module")
def head_dim_multiple(device: str) -> int:
    """The number that head sizes must be a multiple of on this device, by its own error message."""
    try:
        one = np.ones((1, 1))
        ops.attention(one, one, one, [0, 1], num_heads=1, device=device)
    except ValueError as error:
        return int(re.findall(r"head_dim 1 is not a positive multiple of (\d+)", str(error))[0])
    return 1


def check(
    precision: Precision,
    device: str,
    rng: Random,
    q_lengths: list[int],
    kv_lengths: list[int] | None = None,
    head_dim: int = 32,
    num_heads: int = 2,
    num_kv_heads: int = 2,
    **options: Any,
) -> None:
    """Attention over random rows against the reference."""
    cu_q = offsets(q_lengths)
    cu_k = cu_q if kv_lengths is None else offsets(kv_lengths)
    q = precision.round(rng.normal(0, 1.5, (cu_q[-1], num_heads * head_dim)))
    k, v = (
        precision.round(rng.normal(0, 1, (cu_k[-1], num_kv_heads * head_dim))) for _ in range(2)
    )
    actual = ops.attention(
        q,
        k,
        v,
        cu_q,
        cu_k,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        device=device,
        dtype=precision.name,
        **options,
    )
    expected = reference.attention(q, k, v, cu_q, cu_k, num_heads, num_kv_heads, **options)
    # The weights of the values are rounded as well as the result.
    precision.check(actual, expected, steps=2)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_sizes(
    precision: Precision, device: str, rng: Random, head_dim: int, head_dim_multiple: int
) -> None:
    if head_dim % head_dim_multiple == 0:
        check(precision, device, rng, [5, 70, 1], head_dim=head_dim)
        return
    message = f"head_dim {head_dim} is not a positive multiple of {head_dim_multiple}"
    with pytest.raises(ValueError, match=message):
        check(precision, device, rng, [5, 70, 1], head_dim=head_dim)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_batches(
    precision: Precision, device: str, rng: Random, lengths: list[int], causal: bool
) -> None:
    check(precision, device, rng, lengths, causal=causal)


def test_long_sequence(precision: Precision, device: str, rng: Random) -> None:
    check(precision, device, rng, [3, 1500, 40], num_heads=1, num_kv_heads=1)


@pytest.mark.arm
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 2), (6, 1), (6, 3), (5, 5)])
def test_grouped_queries(
    precision: Precision, device: str, rng: Random, num_heads: int, num_kv_heads: int
) -> None:
    check(precision, device, rng, [9, 0, 65], num_heads=num_heads, num_kv_heads=num_kv_heads)


@pytest.mark.arm
@pytest.mark.parametrize(
    "window", [(-1, 0), (0, 0), (0, -1), (3, 2), (16, 0), (64, 64), (70, 1), (-1, 5), (1000, 1000)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_windows(
    precision: Precision, device: str, rng: Random, window: tuple[int, int], causal: bool
) -> None:
    check(precision, device, rng, [130, 1, 17, 0, 64], window=window, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (8, 3)])
def test_queries_over_cached_keys(
    precision: Precision, device: str, rng: Random, window: tuple[int, int], causal: bool
) -> None:
    """Decoding: new queries stand at the end of their keys."""
    check(
        precision, device, rng, [1, 5, 0, 70, 1], [1, 80, 9, 70, 300], causal=causal, window=window
    )


def test_queries_without_keys_give_zeros(precision: Precision, device: str, rng: Random) -> None:
    check(precision, device, rng, [3, 2, 1], [0, 5, 0])
    # Queries are more than keys: the first ones stand before every key.
    check(precision, device, rng, [6, 70], [4, 3], causal=True)
    check(precision, device, rng, [40], [40], window=(-1, -1), scale=0.0)


def test_scale(precision: Precision, device: str, rng: Random) -> None:
    check(precision, device, rng, [20, 3], scale=0.3)
    check(precision, device, rng, [20, 3], scale=-0.1)


@pytest.mark.arm
@pytest.mark.parametrize("causal", [False, True])
def test_alibi(precision: Precision, device: str, rng: Random, causal: bool) -> None:
    slopes = np.array([0.5, 0.25, 0.0, 1.0], np.float32)
    options: dict[str, Any] = {"num_heads": 4, "alibi_slopes": slopes, "causal": causal}
    check(precision, device, rng, [100, 1, 30], **options)
    check(precision, device, rng, [2, 30], [90, 31], **options)


@pairwise(
    buckets=[(32, 128), (32, 20), (8, 50), (4, 3)],
    bidirectional=[True, False],
    causal=[False, True],
)
def test_buckets(
    precision: Precision,
    device: str,
    rng: Random,
    buckets: tuple[int, int],
    bidirectional: bool,
    causal: bool,
) -> None:
    num_buckets, max_distance = buckets
    table = rng.normal(0, 1, (num_buckets, 2)).astype(np.float32)
    options: dict[str, Any] = {
        "bucket_table": table,
        "max_distance": max_distance,
        "bidirectional": bidirectional,
        "causal": causal,
    }
    check(precision, device, rng, [200, 1, 33], **options)
    check(precision, device, rng, [3, 40], [150, 40], **options)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 3000), (600, 400)])
def test_many_and_far_buckets(
    precision: Precision, device: str, rng: Random, num_buckets: int, max_distance: int
) -> None:
    table = rng.normal(0, 1, (num_buckets, 2)).astype(np.float32)
    check(precision, device, rng, [5], [1400], bucket_table=table, max_distance=max_distance)


def test_neighbours_do_not_leak(precision: Precision, device: str, rng: Random) -> None:
    """NaN and Inf in one sequence's rows leave every other sequence's bits alone."""
    lengths = [5, 30, 70]
    cu_seqlens = offsets(lengths)
    rows = [precision.round(rng.normal(0, 1, (cu_seqlens[-1], 64))) for _ in range(3)]
    options: dict[str, Any] = {"num_heads": 2, "device": device, "dtype": precision.name}
    q, k, v = rows
    clean = ops.attention(q, k, v, cu_seqlens, **options)
    for poison in (np.nan, np.inf):
        for b in range(3):
            own = np.repeat(np.arange(3) == b, lengths)
            q, k, v = (np.where(own[:, None], np.float32(poison), x) for x in rows)
            actual = ops.attention(q, k, v, cu_seqlens, **options)
            np.testing.assert_array_equal(actual[~own], clean[~own])
            assert not np.isfinite(actual[own]).any()


def test_large_scores(precision: Precision, device: str) -> None:
    """Softmax subtracts the largest score: no overflow for scores in the thousands."""
    q = np.full((3, 32), 30.0, np.float32)
    k = np.stack([np.full(32, x, np.float32) for x in (10.0, 9.0, -10.0)])
    v = np.stack([np.full(32, x, np.float32) for x in (1.0, 2.0, 3.0)])
    actual = ops.attention(q, k, v, [0, 3], num_heads=1, device=device, dtype=precision.name)
    precision.check(actual, np.ones((3, 32)))


def test_errors(device: str, head_dim_multiple: int) -> None:
    d = head_dim_multiple
    rows = np.ones((4, 2 * d))
    on: dict[str, Any] = {"device": device, "num_heads": 2}
    for call, message in [
        (lambda: ops.attention(rows, rows, rows[:3], [0, 4], **on), "v is"),
        (lambda: ops.attention(rows, rows[:, :d], rows, [0, 4], **on), r"k is .*expected \[4"),
        (lambda: ops.attention(rows, rows, rows, [0, 4], num_kv_heads=3, **on), "num_kv_heads 3"),
        (lambda: ops.attention(rows, rows, rows, [0, 3], **on), "4 tokens"),
        (lambda: ops.attention(rows, rows, rows, [0, 4], [0, 2, 4], **on), "1 sequences, keys 2"),
        (
            lambda: ops.attention(rows, rows, rows, [0, 4], alibi_slopes=np.ones(3), **on),
            "alibi_slopes: expected a vector of 2",
        ),
        (
            lambda: ops.attention(rows, rows, rows, [0, 4], bucket_table=np.ones((32, 3)), **on),
            r"bucket_table: expected \[num_buckets, num_heads\]",
        ),
        (
            lambda: ops.attention(rows, rows, rows, [0, 4], bucket_table=np.ones((3, 2)), **on),
            "at least 4 buckets",
        ),
        (
            lambda: ops.attention(
                rows, rows, rows, [0, 4], bucket_table=np.ones((1, 2)), bidirectional=False, **on
            ),
            "at least 2 buckets",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(("buckets", "max_distance"), [(256, 512), (4, 4), (32, 90), (0, 7)])
@pytest.mark.parametrize("terms", [["keys", "queries"], ["keys"], ["queries"]])
def test_disentangled(
    precision: Precision,
    device: str,
    rng: Random,
    terms: list[str],
    buckets: int,
    max_distance: int,
) -> None:
    slots = 2 * (buckets or max_distance)
    options: dict[str, Any] = {
        f"position_{name}": precision.round(rng.normal(0, 1, (slots, 64))) for name in terms
    }
    options |= {"buckets": buckets, "max_distance": max_distance, "scale": 0.1}
    check(precision, device, rng, [65, 1, 0, 300], **options)
    check(precision, device, rng, [3, 1], [150, 40], **options)


def test_disentangled_sizes_that_do_not_suit(device: str) -> None:
    rows = np.ones((4, 32), np.float32)
    for buckets, message in [(8, "position_keys has 4 rows, expected 16"), (2, "buckets 2, max")]:
        with pytest.raises(ValueError, match=message):
            ops.attention(
                rows, rows, rows, [0, 4], num_heads=1, position_keys=rows, buckets=buckets,
                device=device,
            )  # fmt: skip
