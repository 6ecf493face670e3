"""The kernels of Hopper (wgmma) and the portable ones (mma.sync) add the products of a sum in the
same order. Generation relies on these bits where one of them takes over from the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_support import Precision, to_host, using_kernels, vector
from packhorse import ops
from torch import Generator

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability(0) != (9, 0), reason="needs compute capability 9.0"
)


@pytest.mark.parametrize("k", [8, 16, 24, 40, 64, 72, 312, 768, 1000, 4096])
def test_products_have_the_same_bits(precision: Precision, random: Generator, k: int) -> None:
    for rows, n in [(1, 64), (17, 768), (64, 72), (130, 1024), (513, 264)]:
        x = to_host(precision.normal(random, rows, k))
        weight = to_host(precision.normal(random, n, k, scale=k**-0.5))
        bias = to_host(vector(random, n))
        found = []
        for kernels in ("sm90", "portable"):
            with using_kernels(kernels):
                found.append(ops.gemm(x, weight, bias, **precision.options()))
        different = int(np.count_nonzero(found[0].view(np.int32) != found[1].view(np.int32)))
        assert different == 0, f"{different} of {found[0].size} of {rows} x {n} x {k}"
