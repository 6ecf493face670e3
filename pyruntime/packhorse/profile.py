"""Where the time of a run on the CPU goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from packhorse._session import start_cpu_profile, stop_cpu_profile


@contextmanager
def cpu_profile() -> Iterator[dict[str, float]]:
    """Fills a dict of seconds at the end of the block, for the whole process.

    "wall": of the block. Seconds of all threads together: "product" (the dense layers, with bias
    and activation where their kernels apply them), "attention", "norm" (with the residual),
    "quantize" (int8: to bytes and back, with bias and activation), "other" (embeddings, gates,
    rotations, pooling, casts). With n threads at work, n * wall less all of them is waiting, Python
    and what else is not computing. Not for use within another such block.
    """
    parts: dict[str, float] = {}
    start_cpu_profile()
    start = time.perf_counter()
    try:
        yield parts
    finally:
        parts["wall"] = time.perf_counter() - start
        parts |= stop_cpu_profile()
