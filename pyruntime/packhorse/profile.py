"""Measures where the time of runs on the CPU goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from packhorse._native.session import start_cpu_profile, stop_cpu_profile


@contextmanager
def cpu_profile() -> Iterator[dict[str, float]]:
    """Fills a dict of seconds at the end of the block, for the whole process.

    "wall" is the duration of the block. The others are seconds of all threads together: "product"
    (the dense layers, with bias and activation if their kernels apply them), "attention", "norm"
    (with the residual), "quantize" (int8: conversion to bytes and back, with bias and activation)
    and "other" (embeddings, gates, rotations, pooling, casts). With n threads, the rest of n * wall
    is time in which they did not compute: waiting, Python and so on. Blocks must not be nested.
    """
    parts: dict[str, float] = {}
    start_cpu_profile()
    start = time.perf_counter()
    try:
        yield parts
    finally:
        parts["wall"] = time.perf_counter() - start
        parts |= stop_cpu_profile()
