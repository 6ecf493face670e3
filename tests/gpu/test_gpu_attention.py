"""Variable-length attention by every algorithm: head sizes, lengths, masks and additive terms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from cases import BATCHES, mixed_lengths, offsets
from combinations import pairwise
from gpu_support import PRECISIONS, Precision, attention, to_host
from packhorse import ops
from torch import Generator

Lengths = list[int]
# Every kernel runs in some batch: all sequences short, few blocks, many blocks, thousands of keys.
LENGTHS: dict[str, Lengths] = {
    **BATCHES,
    "tile-edges": [127, 128, 129, 191, 192, 193, 255, 256, 257],
    "many-short": [int(n) for n in np.random.default_rng(0).integers(0, 129, 90)],
    "one-warp-of-sequences": [*mixed_lengths(30, 1500), 0, 129],
    "one-more": mixed_lengths(33, 300),
    "many": mixed_lengths(64, 600),
    "long": [4096, 1, 0, 777],
    # Lengths around the limits of ByteTransformer's two kernels.
    "limits": [383, 384, 385, 1, 1023, 1024, 1025, 0],
}
WINDOWS = [(-1, 0), (0, 0), (0, -1), (3, 2), (16, 0), (64, 64), (200, 1), (-1, 5), (9999, 9999)]


# "hopper" is missing because it is what "auto" means on a device that has it (test_auto).
ALGORITHMS = ("auto", "online", "short", "grouped", "bytetransformer")
PAPERS = ("short", "grouped", "bytetransformer")
WIDEST_OF_PAPERS = 128


class Kernel(NamedTuple):
    precision: Precision
    algorithm: str

    def options(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm, **self.precision.options()}

    def takes(self, head_dim: int) -> bool:
        return self.algorithm not in PAPERS or head_dim <= WIDEST_OF_PAPERS

    def skip_wider(self, head_dim: int) -> None:
        if not self.takes(head_dim):
            pytest.skip("refused, as test_head_sizes shows")


# The dtype and the algorithm choose the kernel: each of these meets each value of a parameter.
KERNELS = {
    f"{precision}-{algorithm}": Kernel(PRECISIONS[precision], algorithm)
    for precision in PRECISIONS
    for algorithm in ALGORITHMS
}


@pytest.fixture(params=KERNELS.values(), ids=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    found: Kernel = request.param
    return found


def check(
    kernel: Kernel,
    random: Generator,
    q_lengths: Lengths,
    kv_lengths: Lengths | None = None,
    head_dim: int = 64,
    num_heads: int = 2,
    num_kv_heads: int | None = None,
    **options: Any,
) -> None:
    num_kv_heads = num_kv_heads or num_heads
    precision = kernel.precision
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
        **kernel.options(),
    )
    expected = attention(q, k, v, cu_q.tolist(), cu_k.tolist(), num_heads, num_kv_heads, **options)
    # The probabilities are rounded, and so is the result. Between grouped GEMMs the probabilities
    # are rounded twice: when they are stored, and again when the factor of their tile is known.
    grouped = kernel.algorithm in ("grouped", "bytetransformer")
    precision.check(actual, expected, steps=3 if grouped else 2)


@pytest.mark.parametrize("head_dim", range(8, 257, 8))
def test_head_sizes(kernel: Kernel, random: Generator, head_dim: int) -> None:
    if not kernel.takes(head_dim):
        with pytest.raises(ValueError, match=f"heads of at most 128 columns, found {head_dim}"):
            check(kernel, random, [5], head_dim=head_dim)
        return
    check(kernel, random, [5, 70, 1, 0, 129, 300], head_dim=head_dim)
    check(kernel, random, [130, 3], head_dim=head_dim, causal=True)


@pairwise(kernel=KERNELS, lengths=LENGTHS, causal=[False, True], head_dim=[32, 64, 128])
def test_batches(
    kernel: Kernel, random: Generator, lengths: Lengths, causal: bool, head_dim: int
) -> None:
    check(kernel, random, lengths, causal=causal, head_dim=head_dim, num_heads=4)


def test_very_long(kernel: Kernel, random: Generator) -> None:
    """Beside the long sequence there is a short one, which must not go over as many keys."""
    check(kernel, random, [131072, 3], num_heads=1)


@pairwise(kernel=KERNELS, heads=[(1, 1), (4, 2), (6, 1), (6, 3), (12, 12)], head_dim=[64, 80, 128])
def test_grouped_queries(
    kernel: Kernel, random: Generator, heads: tuple[int, int], head_dim: int
) -> None:
    options: dict[str, Any] = {
        "num_heads": heads[0],
        "num_kv_heads": heads[1],
        "head_dim": head_dim,
    }
    check(kernel, random, [9, 0, 65, 400], **options)
    check(kernel, random, [1, 9, 2], [800, 9, 70], causal=True, **options)


@pairwise(kernel=KERNELS, window=WINDOWS, causal=[False, True])
def test_windows(kernel: Kernel, random: Generator, window: tuple[int, int], causal: bool) -> None:
    lengths = [130, 1, 17, 0, 64, 700]
    for head_dim in filter(kernel.takes, (32, 64, 128, 256)):
        check(kernel, random, lengths, head_dim=head_dim, window=window, causal=causal)


@pairwise(
    kernel=KERNELS,
    window=[(-1, -1), (8, 3), (200, -1)],
    causal=[False, True],
    head_dim=[64, 128],
)
def test_queries_over_cached_keys(
    kernel: Kernel, random: Generator, window: tuple[int, int], causal: bool, head_dim: int
) -> None:
    """As in decoding, queries stand at the end of their keys. In the last batch sequences have
    fewer keys than queries, or none, so that some queries see no key."""
    options: dict[str, Any] = {"head_dim": head_dim, "window": window, "causal": causal}
    check(kernel, random, [3, 1, 0, 64, 5], [40, 1, 7, 64, 300], **options)
    check(kernel, random, [1] * 40, [*range(1, 400, 10)], **options)
    check(kernel, random, [1, 130], [5000, 1100], **options)
    check(kernel, random, [10, 4, 150], [4, 0, 20], **options)


@pairwise(kernel=KERNELS, causal=[False, True], head_dim=[24, 64, 128])
def test_alibi(kernel: Kernel, random: Generator, causal: bool, head_dim: int) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.01, 2.0], dtype=torch.float64, device="cuda")
    options: dict[str, Any] = {"num_heads": 4, "alibi_slopes": slopes, "causal": causal}
    check(kernel, random, [200, 1, 33, 0, 1000], head_dim=head_dim, **options)
    check(kernel, random, [3, 40], [150, 600], head_dim=head_dim, **options)


@pairwise(
    kernel=KERNELS,
    buckets=[(32, 128), (32, 20), (8, 50), (4, 3), (32, 2000), (300, 400)],
    directions=[(False, True), (True, True), (True, False)],
    head_dim=[24, 64, 128],
)
def test_buckets(
    kernel: Kernel,
    random: Generator,
    buckets: tuple[int, int],
    directions: tuple[bool, bool],
    head_dim: int,
) -> None:
    (num_buckets, max_distance), (causal, bidirectional) = buckets, directions
    table = torch.randn(num_buckets, 2, generator=random, device="cuda").double()
    options: dict[str, Any] = {
        "bucket_table": table,
        "max_distance": max_distance,
        "bidirectional": bidirectional,
        "causal": causal,
    }
    check(kernel, random, [200, 1, 33, 0, 1000], head_dim=head_dim, **options)
    check(kernel, random, [3, 40], [150, 600], head_dim=head_dim, window=(90, 90), **options)


@pairwise(
    kernel=KERNELS,
    head_dim=[32, 64, 128, 256],
    mask=[(False, (-1, -1)), (True, (-1, -1)), (False, (100, 30))],
)
def test_bits_do_not_depend_on_the_batch(
    kernel: Kernel, random: Generator, head_dim: int, mask: tuple[bool, tuple[int, int]]
) -> None:
    """A sequence has the same bits alone, in other batches and in other places. Some batches are so
    large that other kernels compute them."""
    kernel.skip_wider(head_dim)
    causal, window = mask
    lengths = [1, 64, 128, 129, 300, 384, 1024, 2049]
    company = [*mixed_lengths(30, 200), 3000]
    heads = 2
    rows = {
        length: [
            to_host(kernel.precision.normal(random, length, heads * head_dim, scale=1.5))
            for _ in "qkv"
        ]
        for length in {*lengths, *company}
    }
    options: dict[str, Any] = {
        "num_heads": heads,
        "causal": causal,
        "window": window,
        **kernel.options(),
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
def test_neighbours_do_not_leak(kernel: Kernel, random: Generator, head_dim: int) -> None:
    """NaN and Inf in one sequence's rows leave every other sequence's bits alone."""
    kernel.skip_wider(head_dim)
    lengths = [5, 130, 70, 1, 300, 700]
    cu_seqlens = offsets(lengths)
    shape = (int(cu_seqlens[-1]), 2 * head_dim)
    q, k, v = (to_host(kernel.precision.normal(random, *shape)) for _ in "qkv")
    options: dict[str, Any] = {"num_heads": 2, **kernel.options()}
    clean = ops.attention(q, k, v, cu_seqlens, **options)
    for poison in (np.nan, np.inf):
        for b in range(len(lengths)):
            own = np.zeros(len(clean), bool)
            own[cu_seqlens[b] : cu_seqlens[b + 1]] = True
            bad_q, bad_k, bad_v = (np.where(own[:, None], poison, x) for x in (q, k, v))
            actual = ops.attention(bad_q, bad_k, bad_v, cu_seqlens, **options)
            assert actual[~own].tobytes() == clean[~own].tobytes(), (poison, b)
            assert not np.isfinite(actual[own]).any()


@pairwise(
    kernel=KERNELS,
    shape=[(128, -1, None), (200, -1, None), (200, 30, None), (200, -1, 0.1), (500, -1, None)],
    head_dim=[32, 64, 128, 256],
)
def test_earlier_tiles_do_not_leak(
    kernel: Kernel, random: Generator, shape: tuple[int, int, float | None], head_dim: int
) -> None:
    """There are so many tiles that each block has several. What long sequences full of NaN leave in
    shared memory must not enter the short sequences that follow."""
    kernel.skip_wider(head_dim)
    longest, window, slopes = shape
    lengths = [longest] * 150 + [int(n) for n in np.random.default_rng(0).integers(1, 70, 150)]
    cu_seqlens = offsets(lengths)
    rows = (int(cu_seqlens[-1]), 6 * head_dim)
    q, k, v = (to_host(kernel.precision.normal(random, *rows)) for _ in "qkv")
    options: dict[str, Any] = {"num_heads": 6, "window": (window, window), **kernel.options()}
    if slopes is not None:
        options["alibi_slopes"] = np.full(6, slopes, np.float32)
    clean = ops.attention(q, k, v, cu_seqlens, **options)
    for array in (q, k, v):
        array[: cu_seqlens[150]] = np.nan
    actual = ops.attention(q, k, v, cu_seqlens, **options)
    assert actual[cu_seqlens[150] :].tobytes() == clean[cu_seqlens[150] :].tobytes()


def test_large_scores(kernel: Kernel) -> None:
    """Softmax subtracts the largest score, so that scores in the thousands do not overflow."""
    q = np.full((3, 32), 30.0, np.float32)
    k = np.stack([np.full(32, x, np.float32) for x in (10.0, 9.0, -10.0)])
    v = np.stack([np.full(32, x, np.float32) for x in (1.0, 2.0, 3.0)])
    actual = ops.attention(q, k, v, [0, 3], num_heads=1, **kernel.options())
    assert (actual == 1).all()


def test_sizes_that_do_not_suit(kernel: Kernel) -> None:
    for head_dim, message in [(12, "not a positive multiple of 8"), (264, "head_dim 264")]:
        rows = np.ones((4, head_dim))
        with pytest.raises(ValueError, match=message):
            ops.attention(rows, rows, rows, [0, 4], num_heads=1, **kernel.options())


def test_no_keys(kernel: Kernel) -> None:
    """Queries of sequences without keys give zeros, also where no sequence has any."""
    rows, none = np.ones((5, 64)), np.ones((0, 64))
    actual = ops.attention(rows, none, none, [0, 2, 5], [0, 0, 0], num_heads=2, **kernel.options())
    assert (actual == 0).all()


def test_auto(precision: Precision, random: Generator) -> None:
    """On a device that has the Hopper kernels, "auto" gives their bits. A term that they do not
    take is refused where "hopper" was asked for by name; "auto" uses the portable kernel."""
    if torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs compute capability 9.0")
    lengths = [130, 1, 0, 700]
    q, k, v = (to_host(precision.normal(random, sum(lengths), 128)) for _ in "qkv")

    def run(algorithm: str, **options: Any) -> bytes:
        found = ops.attention(
            q,
            k,
            v,
            offsets(lengths),
            num_heads=2,
            **options,
            **Kernel(precision, algorithm).options(),
        )
        return bytes(found.tobytes())

    assert run("auto") == run("hopper") != run("online")
    far: dict[str, Any] = {"bucket_table": np.ones((300, 2), np.float32), "max_distance": 2000}
    assert run("auto", **far) == run("online", **far)
    with pytest.raises(ValueError, match="'hopper' does not take .* 300 buckets .* 2000"):
        run("hopper", **far)


def test_unknown_algorithm(precision: Precision) -> None:
    rows = np.ones((4, 64))
    with pytest.raises(ValueError, match="algorithm is 'flash', expected one of 'auto', 'hopper'"):
        ops.attention(
            rows, rows, rows, [0, 4], num_heads=1, algorithm="flash", **precision.options()
        )
