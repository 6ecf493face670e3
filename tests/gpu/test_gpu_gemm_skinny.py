"""Products of few rows, and of sums in parts, have kernels of their own on Hopper. A row has the
same bits by each: generation relies on it where a prompt's tokens and a single new one meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from gpu_support import Array, Precision, to_host, using_kernels, vector
from packhorse import ops
from torch import Generator

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability(0) != (9, 0), reason="needs compute capability 9.0"
)

ROWS = 220  # rows of the product that large tiles compute
# Sizes of batches of its rows. Where sums have parts, up to 16 have a kernel, and so have up to 64.
FEW = [1, 2, 8, 9, 16, 17, 32, 33, 48, 64, 65, 128]
# n and k: less than a box of k, odd multiples of 8, several tiles for a block, chains of many sums.
# The kernels for few rows are for weights of 4 MB and more (cuda/gemm/skinny/skinny.h), and for
# sums in parts, which layers with `skinny` may have where the weight has up to 8,448 features. The
# last seven have 3, 3, 5, 4, 4, 4 and 2 parts, in tiles of which the last is mostly not full; in
# those of 4224 features two blocks share a multiprocessor.
SHAPES = [
    (8, 8),
    (264, 72),
    (768, 768),
    (200000, 40),
    (40000, 136),
    (5400, 1000),
    (4800, 1600),
    (24, 192),
    (1000, 576),
    (1608, 1600),
    (1608, 6400),
    (2048, 8192),
    (4224, 2304),
    (5128, 4224),
]


def check(compute: Callable[[slice], Array], rows: int = ROWS, counts: Sequence[int] = FEW) -> None:
    """compute(rows): the result for those of the `rows` rows of the input, computed at once."""
    whole = compute(slice(0, rows))
    for count in counts:
        begin = 3 * count % (rows - count)
        end = begin + count
        found = compute(slice(begin, end))
        different = np.count_nonzero(found.view(np.int32) != whole[begin:end].view(np.int32))
        assert different == 0, f"{different} of {found.size} of rows {begin} to {end}"


skinny = pytest.mark.parametrize("skinny", [False, True], ids=["whole", "parts"])


@skinny
@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_products(
    precision: Precision,
    random: Generator,
    n: int,
    k: int,
    activation: ops.Activation,
    skinny: bool,
) -> None:
    x = to_host(precision.normal(random, ROWS, k))
    weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
    bias = to_host(vector(random, n))
    residual = to_host(precision.normal(random, ROWS, n)) if activation == "none" else None

    def compute(rows: slice) -> Array:
        added = None if residual is None else residual[rows]
        found: Array = ops.gemm(
            x[rows],
            weight,
            bias,
            activation=activation,
            residual=added,
            skinny=skinny,
            **precision.options(),
        )
        return found

    check(compute)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize(
    ("n", "k"), [(520, 2048), (1280, 5120), (2048, 8192), (4096, 4096), (6144, 4096)]
)
def test_parts_of_many_rows(
    precision: Precision, random: Generator, n: int, k: int, residual: bool
) -> None:
    """Clusters compute long sums of up to about 500 rows too, in tiles of 128 rows of which the
    last is not always full, with one part of a sum a block or two."""
    x = to_host(precision.normal(random, 700, k))
    weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
    added = to_host(precision.normal(random, 700, n)) if residual else None

    def compute(rows: slice) -> Array:
        found: Array = ops.gemm(
            x[rows],
            weight,
            activation="none" if residual else "gelu",
            residual=None if added is None else added[rows],
            skinny=True,
            **precision.options(),
        )
        return found

    check(compute, 700, [1, 65, 100, 128, 129, 161, 256, 300, 384, 420, 449, 512])


@pytest.mark.parametrize("k", [192, 1600, 6400])
def test_parts(precision: Precision, random: Generator, k: int) -> None:
    """A sum in parts is another than one that is not, and as near to that in float64."""
    x, weight = precision.normal(random, 40, k), precision.normal(random, 1600, k, scale=k**-0.5)
    expected = x @ weight.T
    found = {
        parts: ops.gemm(to_host(x), to_host(weight), skinny=parts, **precision.options())
        for parts in (False, True)
    }
    assert np.count_nonzero(found[True] != found[False]) > 0
    for one in found.values():
        precision.check(one, expected)


@skinny
@pytest.mark.parametrize(
    ("hidden", "intermediate"),
    [(72, 40), (512, 1000), (1000, 3000), (1024, 4128), (2048, 8192)],
)
def test_gated_feed_forward(
    precision: Precision, random: Generator, hidden: int, intermediate: int, skinny: bool
) -> None:
    x = to_host(precision.normal(random, ROWS, hidden))

    def layer(n: int, k: int) -> tuple[Array, Array]:
        return to_host(precision.normal(random, n, k, scale=k**-0.5)), to_host(vector(random, n))

    gate, up = layer(intermediate, hidden), layer(intermediate, hidden)
    down = layer(hidden, intermediate)

    def compute(rows: slice) -> Array:
        found: Array = ops.feed_forward(
            x[rows],
            up,
            down,
            gate=gate,
            activation="silu",
            residual=x[rows],
            skinny=skinny,
            **precision.options(),
        )
        return found

    check(compute)


@skinny
@pytest.mark.parametrize(
    ("heads", "head_dim", "dims", "k"),
    [
        ((4, 2), 64, 64, 256),
        ((8, 2), 64, 48, 4096),
        ((32, 8), 64, 64, 2048),
        ((36, 36), 40, 16, 2304),
    ],
)
def test_rotated_heads(
    precision: Precision,
    random: Generator,
    heads: tuple[int, int],
    head_dim: int,
    dims: int,
    k: int,
    skinny: bool,
) -> None:
    num_heads, num_kv_heads = heads
    n = (num_heads + 2 * num_kv_heads) * head_dim
    x = to_host(precision.normal(random, ROWS, k))
    weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
    bias = to_host(vector(random, n))
    frequencies = (10000.0 ** -(np.arange(dims // 2) / (dims // 2))).astype(np.float32)
    positions = np.arange(ROWS, dtype=np.int32) * 3

    def compute(rows: slice) -> Array:
        return ops.qkv_rope(
            x[rows],
            weight,
            bias,
            [0, rows.stop - rows.start],
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            frequencies=frequencies,
            position_ids=positions[rows],
            skinny=skinny,
            **precision.options(),
        )

    check(compute)


@pytest.mark.parametrize("k", [32, 64, 768, 4096])
def test_portable_kernels(precision: Precision, random: Generator, k: int) -> None:
    """The portable kernels add in the same order, where k is a multiple of 32. CUTLASS begins with
    the part of k that is left over otherwise."""
    for rows, n in [(1, 64), (17, 768), (64, 72), (130, 1024), (513, 264)]:
        x = to_host(precision.normal(random, rows, k))
        weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
        found = []
        for kernels in ("sm90", "portable"):
            with using_kernels(kernels):
                found.append(ops.gemm(x, weight, **precision.options()))
        different = int(np.count_nonzero(found[0].view(np.int32) != found[1].view(np.int32)))
        assert different == 0, f"{different} of {found[0].size} of {rows} x {n} x {k}"
