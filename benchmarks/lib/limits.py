"""Measures what limits an encoder: the best rate of products on this machine, and where its time
goes.

The rate is that of the fastest code for large products: PyTorch's libraries (its BLAS, oneDNN on
packed weights) or Packhorse's own kernels. The time comes from the runtime's own timers, so that
all shares of a run add up to it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import packhorse
from engines import Engine
from figures import DTYPES
from packhorse import ops
from workloads import Batch

ROWS = 2048
SHAPES = ((1024, 1024), (1024, 4096), (4096, 1024))  # (in_features, out_features)
TRIALS = 5
SLOW = 1.0  # seconds: what takes longer, as PyTorch's bfloat16 by AVX2 does, is not tried again


def _torch_products(dtype: str, k: int, n: int) -> list[Callable[[], Any]]:
    """Yields products of [ROWS, k] and [k, n] by every method that this PyTorch has."""
    import torch

    if dtype == "int8":
        x = torch.randint(-127, 128, (ROWS, k), dtype=torch.int8)
        weight = torch.randint(-127, 128, (k, n), dtype=torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(weight, [ROWS, k])
        scales, zeros = torch.ones(n), torch.zeros(n, dtype=torch.int64)
        unsigned = x.to(torch.uint8)
        return [
            lambda: torch._int_mm(x, weight),
            lambda: torch.ops.onednn.qlinear_pointwise(
                unsigned, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
            ),
        ]
    kind = getattr(torch, dtype)
    x, weight = torch.randn(ROWS, k, dtype=kind), torch.randn(n, k, dtype=kind)
    out, transposed = torch.empty(ROWS, n, dtype=kind), weight.t()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return [
        lambda: torch.mm(x, transposed, out=out),
        lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""),
    ]


def _torch_rate(dtype: str, k: int, n: int) -> float:
    """The FLOP/s of PyTorch's fastest product, or 0 if it has none."""
    best = float("inf")
    # Only mm is a public interface of PyTorch; the others may be missing in a later version.
    with contextlib.suppress(ImportError, AttributeError, NotImplementedError, RuntimeError):
        import torch

        with torch.inference_mode():
            for product in _torch_products(dtype, k, n):
                with contextlib.suppress(NotImplementedError, RuntimeError):
                    for _ in range(TRIALS):
                        start = time.perf_counter()
                        product()
                        best = min(best, time.perf_counter() - start)
                        if time.perf_counter() - start > SLOW:
                            break
    return 2 * ROWS * k * n / best


def _own_rate(dtype: str, k: int, n: int, threads: int) -> float:
    best = float("inf")
    x, weight = np.ones((ROWS, k), np.float32), np.ones((n, k), np.float32)
    with contextlib.suppress(RuntimeError):  # the processor lacks the dtype
        for _ in range(TRIALS):
            with packhorse.cpu_profile() as parts:
                ops.gemm(x, weight, dtype=dtype, threads=threads)
            best = min(best, parts["product"] / threads)
    return 2 * ROWS * k * n / best


def measure_peaks(threads: int, dtypes: Sequence[str] = DTYPES) -> dict[str, float]:
    """Measures the FLOP/s of the fastest product in each of the dtypes."""
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(threads)
    return {
        dtype: max(
            max(_torch_rate(dtype, k, n), _own_rate(dtype, k, n, threads)) for k, n in SHAPES
        )
        for dtype in dtypes
    }


def profile(engine: Engine, batches: Sequence[Batch], threads: int) -> dict[str, float]:
    """The seconds of each part of Packhorse's time, as means over the threads; "waiting" is the
    rest.

    They are those of the fastest of several passes, because disturbances are not Packhorse's.
    """
    passes = []
    for _ in range(TRIALS):
        with packhorse.cpu_profile() as parts:
            for batch in batches:
                engine.run(batch)
        passes.append(parts)
    best = min(passes, key=lambda parts: parts["wall"])
    wall = best.pop("wall")
    shares = {name: seconds / threads for name, seconds in best.items()}
    return {**shares, "waiting": wall - sum(shares.values()), "wall": wall}
