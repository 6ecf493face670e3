"""Variable-length attention: head sizes, lengths, masks, additive terms; both kernel families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import BATCHES, mixed_lengths, offsets
from gpu_support import Precision, attention, to_host
from packhorse import ops
from torch import Generator

pytestmark = pytest.mark.usefixtures("kernels")

Lengths = list[int]
# Among them what takes each kernel: all short, few blocks, many blocks, thousands of keys.
LENGTHS: dict[str, Lengths] = {
    **BATCHES,
    "tile-edges": [127, 128, 129, 191, 192, 193, 255, 256, 257],
    "many-short": [int(n) for n in np.random.default_rng(0).integers(0, 129, 90)],
    "one-warp-of-sequences": [*mixed_lengths(30, 1500), 0, 129],
    "one-more": mixed_lengths(33, 300),
    "many": mixed_lengths(64, 600),
    "long": [4096, 1, 0, 777],
}
WINDOWS = [(-1, 0), (0, 0), (0, -1), (3, 2), (16, 0), (64, 64), (200, 1), (-1, 5), (9999, 9999)]


def check(
    precision: Precision,
    random: Generator,
    q_lengths: Lengths,
    kv_lengths: Lengths | None = None,
    head_dim: int = 64,
    num_heads: int = 2,
    num_kv_heads: int | None = None,
    **options: Any,
) -> None:
    num_kv_heads = num_kv_heads or num_heads
    cu_q = offsets(q_lengths)
    cu_k = cu_q if kv_lengths is None else offsets(kv_lengths)
    q = precision.normal(random, int(cu_q[-1]), num_heads * head_dim, scale=1.5)
    k, v = (precision.normal(random, int(cu_k[-1]), num_kv_heads * head_dim) for _ in range(2))
    actual = ops.attention(
        to_host(q),
        to_host(k),
        to_host(v),
        cu_q,
        cu_k,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        **{name: to_host(x) if torch.is_tensor(x) else x for name, x in options.items()},
        **precision.options(),
    )
    expected = attention(q, k, v, cu_q.tolist(), cu_k.tolist(), num_heads, num_kv_heads, **options)
    # The weights of the values are rounded as well as the result.
    precision.check(actual, expected, steps=2)


@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_head_sizes(precision: Precision, random: Generator, head_dim: int) -> None:
    check(precision, random, [5, 70, 1, 0, 129, 300], head_dim=head_dim)
    check(precision, random, [130, 3], head_dim=head_dim, causal=True)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_batches(
    precision: Precision, random: Generator, lengths: Lengths, causal: bool, head_dim: int
) -> None:
    check(precision, random, lengths, causal=causal, head_dim=head_dim, num_heads=4)


def test_very_long(precision: Precision, random: Generator) -> None:
    """Beside it a short sequence, which must not wait for so many keys."""
    check(precision, random, [131072, 3], num_heads=1)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 2), (6, 1), (6, 3), (12, 12)])
def test_grouped_queries(
    precision: Precision, random: Generator, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    heads: dict[str, Any] = {
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
    }
    check(precision, random, [9, 0, 65, 400], **heads)
    check(precision, random, [1, 9, 2], [800, 9, 70], causal=True, **heads)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("causal", [False, True])
def test_windows(
    precision: Precision, random: Generator, window: tuple[int, int], causal: bool
) -> None:
    lengths = [130, 1, 17, 0, 64, 700]
    for head_dim in (32, 64, 128, 256):
        check(precision, random, lengths, head_dim=head_dim, window=window, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (8, 3), (200, -1)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_queries_over_cached_keys(
    precision: Precision, random: Generator, window: tuple[int, int], causal: bool, head_dim: int
) -> None:
    """Decoding: new queries stand at the end of their keys. Then fewer keys than queries, or none:
    some queries see nothing."""
    options: dict[str, Any] = {"head_dim": head_dim, "window": window, "causal": causal}
    check(precision, random, [3, 1, 0, 64, 5], [40, 1, 7, 64, 300], **options)
    check(precision, random, [1] * 40, [*range(1, 400, 10)], **options)
    check(precision, random, [1, 130], [5000, 1100], **options)
    check(precision, random, [10, 4, 150], [4, 0, 20], **options)


@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_alibi(precision: Precision, random: Generator, causal: bool, head_dim: int) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.01, 2.0], dtype=torch.float64, device="cuda")
    options: dict[str, Any] = {"num_heads": 4, "alibi_slopes": slopes, "causal": causal}
    check(precision, random, [200, 1, 33, 0, 1000], head_dim=head_dim, **options)
    check(precision, random, [3, 40], [150, 600], head_dim=head_dim, **options)


@pytest.mark.parametrize("head_dim", [24, 64, 128])
@pytest.mark.parametrize(("causal", "bidirectional"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 20), (8, 50), (4, 3), (32, 2000), (300, 400)]
)
def test_buckets(
    precision: Precision,
    random: Generator,
    num_buckets: int,
    max_distance: int,
    causal: bool,
    bidirectional: bool,
    head_dim: int,
) -> None:
    table = torch.randn(num_buckets, 2, generator=random, device="cuda").double()
    options: dict[str, Any] = {
        "bucket_table": table,
        "max_distance": max_distance,
        "bidirectional": bidirectional,
        "causal": causal,
    }
    check(precision, random, [200, 1, 33, 0, 1000], head_dim=head_dim, **options)
    check(precision, random, [3, 40], [150, 600], head_dim=head_dim, window=(90, 90), **options)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize(
    ("causal", "window"), [(False, (-1, -1)), (True, (-1, -1)), (False, (100, 30))]
)
def test_bits_do_not_depend_on_the_batch(
    precision: Precision, random: Generator, head_dim: int, causal: bool, window: tuple[int, int]
) -> None:
    """Alone, in other batches and places; so many that other kernels are taken."""
    lengths = [1, 64, 128, 129, 300, 2049]
    company = [*mixed_lengths(30, 200), 3000]
    heads = 2
    rows = {
        length: [
            to_host(precision.normal(random, length, heads * head_dim, scale=1.5)) for _ in "qkv"
        ]
        for length in {*lengths, *company}
    }
    options: dict[str, Any] = {
        "num_heads": heads,
        "causal": causal,
        "window": window,
        **precision.options(),
    }

    def run(batch: Lengths) -> list[bytes]:
        q, k, v = (np.concatenate([rows[length][i] for length in batch]) for i in range(3))
        cu_seqlens = offsets(batch)
        out = ops.attention(q, k, v, cu_seqlens, **options)
        return [part.tobytes() for part in np.split(out, cu_seqlens[1:-1])]

    alone = {length: run([length])[0] for length in lengths}
    for batch in (lengths, lengths[:3], [*company, *lengths], [*lengths[::-1], *company] * 2):
        for length, found in zip(batch, run(batch), strict=True):
            assert found == alone.get(length, found), (length, len(batch))


@pytest.mark.parametrize("head_dim", [40, 64, 128, 256])
def test_neighbours_do_not_leak(precision: Precision, random: Generator, head_dim: int) -> None:
    """NaN and Inf in one sequence's rows leave every other sequence's bits alone."""
    lengths = [5, 130, 70, 1, 300]
    cu_seqlens = offsets(lengths)
    shape = (int(cu_seqlens[-1]), 2 * head_dim)
    q, k, v = (to_host(precision.normal(random, *shape)) for _ in "qkv")
    options: dict[str, Any] = {"num_heads": 2, **precision.options()}
    clean = ops.attention(q, k, v, cu_seqlens, **options)
    for poison in (np.nan, np.inf):
        for b in range(len(lengths)):
            own = np.zeros(len(clean), bool)
            own[cu_seqlens[b] : cu_seqlens[b + 1]] = True
            bad_q, bad_k, bad_v = (np.where(own[:, None], poison, x) for x in (q, k, v))
            actual = ops.attention(bad_q, bad_k, bad_v, cu_seqlens, **options)
            assert actual[~own].tobytes() == clean[~own].tobytes(), (poison, b)
            assert not np.isfinite(actual[own]).any()


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize(
    ("longest", "window", "slopes"),
    [(128, -1, None), (200, -1, None), (200, 30, None), (200, -1, 0.1)],
)
def test_earlier_tiles_do_not_leak(
    precision: Precision,
    random: Generator,
    longest: int,
    window: int,
    slopes: float | None,
    head_dim: int,
) -> None:
    """So many tiles that each block has several: what shared memory still holds of long sequences
    full of NaN stays out of the short ones that follow."""
    lengths = [longest] * 150 + [int(n) for n in np.random.default_rng(0).integers(1, 70, 150)]
    cu_seqlens = offsets(lengths)
    shape = (int(cu_seqlens[-1]), 6 * head_dim)
    q, k, v = (to_host(precision.normal(random, *shape)) for _ in "qkv")
    options: dict[str, Any] = {"num_heads": 6, "window": (window, window), **precision.options()}
    if slopes is not None:
        options["alibi_slopes"] = np.full(6, slopes, np.float32)
    clean = ops.attention(q, k, v, cu_seqlens, **options)
    for rows in (q, k, v):
        rows[: cu_seqlens[150]] = np.nan
    actual = ops.attention(q, k, v, cu_seqlens, **options)
    assert actual[cu_seqlens[150] :].tobytes() == clean[cu_seqlens[150] :].tobytes()


def test_large_scores(precision: Precision) -> None:
    """Softmax subtracts the largest score: no overflow for scores in the thousands."""
    q = np.full((3, 32), 30.0, np.float32)
    k = np.stack([np.full(32, x, np.float32) for x in (10.0, 9.0, -10.0)])
    v = np.stack([np.full(32, x, np.float32) for x in (1.0, 2.0, 3.0)])
    actual = ops.attention(q, k, v, [0, 3], num_heads=1, **precision.options())
    assert (actual == 1).all()


def test_sizes_that_do_not_suit(precision: Precision) -> None:
    for head_dim, message in [(12, "not a positive multiple of 8"), (264, "head_dim 264")]:
        rows = np.ones((4, head_dim))
        with pytest.raises(ValueError, match=message):
            ops.attention(rows, rows, rows, [0, 4], num_heads=1, **precision.options())
