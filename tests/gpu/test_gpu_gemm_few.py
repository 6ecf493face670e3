"""Products of few rows have kernels of their own on Hopper. A row has the same bits by either:
generation relies on it where a prompt's tokens and a single new one meet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from gpu_support import Array, Precision, to_host, using_kernels, vector
from packhorse import ops
from torch import Generator

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability(0) != (9, 0), reason="needs compute capability 9.0"
)

ROWS = 220  # of the product that large tiles compute
FEW = [0, 1, 3, 10, 18, 27, 43, 44]  # where batches of 1 to 16 of its rows begin and end
# n and k: less than a box of k, odd multiples of 8, several tiles for a block, a chain of many sums
SHAPES = [
    (8, 8),
    (24, 40),
    (264, 72),
    (1600, 312),
    (768, 768),
    (4800, 1600),
    (520, 1000),
    (768, 3072),
    (40000, 128),
    (264, 6400),
]


def check(compute: Callable[[slice], Array]) -> None:
    """compute(rows): the result for those rows of the input, computed at once."""
    whole = compute(slice(0, ROWS))
    for begin, end in pairwise(FEW):
        found = compute(slice(begin, end))
        different = np.count_nonzero(found.view(np.int32) != whole[begin:end].view(np.int32))
        assert different == 0, f"{different} of {found.size} of rows {begin} to {end}"


@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_products(
    precision: Precision, random: Generator, n: int, k: int, activation: ops.Activation
) -> None:
    x = to_host(precision.normal(random, ROWS, k))
    weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
    bias = to_host(vector(random, n))
    residual = to_host(precision.normal(random, ROWS, n)) if activation == "none" else None

    def compute(rows: slice) -> Array:
        added = None if residual is None else residual[rows]
        found: Array = ops.gemm(
            x[rows], weight, bias, activation=activation, residual=added, **precision.options()
        )
        return found

    check(compute)


@pytest.mark.parametrize(("hidden", "intermediate"), [(72, 40), (768, 2048), (2048, 8192)])
def test_gated_feed_forward(
    precision: Precision, random: Generator, hidden: int, intermediate: int
) -> None:
    x = to_host(precision.normal(random, ROWS, hidden))

    def layer(n: int, k: int) -> tuple[Array, Array]:
        return to_host(precision.normal(random, n, k, scale=k**-0.5)), to_host(vector(random, n))

    gate, up = layer(intermediate, hidden), layer(intermediate, hidden)
    down = layer(hidden, intermediate)

    def compute(rows: slice) -> Array:
        found: Array = ops.feed_forward(
            x[rows], up, down, gate=gate, activation="silu", residual=x[rows], **precision.options()
        )
        return found

    check(compute)


@pytest.mark.parametrize(("heads", "head_dim", "dims"), [((4, 2), 64, 64), ((6, 6), 40, 16)])
def test_rotated_heads(
    precision: Precision, random: Generator, heads: tuple[int, int], head_dim: int, dims: int
) -> None:
    num_heads, num_kv_heads = heads
    n, k = (num_heads + 2 * num_kv_heads) * head_dim, 256
    x = to_host(precision.normal(random, ROWS, k))
    weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
    bias = to_host(vector(random, n))
    frequencies = (10000.0 ** -(np.arange(dims // 2) / (dims // 2))).astype(np.float32)
    positions = np.arange(ROWS, dtype=np.int32) * 3

    def compute(rows: slice) -> Array:
        return ops.project_heads(
            x[rows],
            weight,
            bias,
            [0, rows.stop - rows.start],
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            frequencies=frequencies,
            position_ids=positions[rows],
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
