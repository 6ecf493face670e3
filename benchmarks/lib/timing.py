"""Times engines side by side, and compares their results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from engines import Engine, FloatArray
from figures import PACKHORSE
from rich.progress import Progress

MOST_ROUNDS, A_MINUTE = 15, 60
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # "cpu": time of all threads
PAUSE = 0.02  # in seconds, after which threads no longer spin


def interleave(
    engines: Sequence[Engine],
    batches: Sequence[Any],
    rounds: int,
    seconds: float,
    progress: Progress,
    name: str,
    clock: str = "wall",
) -> list[list[float]]:
    """Times one pass over the batches, in seconds by one of CLOCKS: [engine][round].

    There are at least `rounds` rounds, or two if those take over a minute, and more until `seconds`
    are over, up to MOST_ROUNDS.
    """
    times: list[list[float]] = [[] for _ in engines]
    task = progress.add_task(name, total=None)
    begin = time.perf_counter()
    round_ = 0
    while round_ < max(MOST_ROUNDS, rounds):
        elapsed = time.perf_counter() - begin
        if round_ >= (rounds if elapsed < A_MINUTE else 2) and elapsed >= seconds:
            break
        for step in range(len(engines)):
            i = (round_ + step) % len(engines)
            time.sleep(PAUSE)
            engines[i].run(batches[0][:1])  # brings its weights and code back into the caches
            start = CLOCKS[clock]()
            for batch in batches:
                engines[i].run(batch)
            times[i].append(CLOCKS[clock]() - start)
        round_ += 1
    progress.remove_task(task)
    return times


def find_reference(engines: Sequence[Engine]) -> Engine:
    """Returns a float32 engine that is not ours, PyTorch if it is there, otherwise the first
    float32 engine."""
    exact = [engine for engine in engines if engine.dtype == "float32"] or list(engines)
    others = [engine for engine in exact if engine.name != PACKHORSE]
    return next((one for one in others if one.name == "PyTorch"), (others or exact)[0])


def min_cosine(ours: FloatArray, theirs: FloatArray) -> float:
    """The smallest cosine of a row of `ours` and the same row of `theirs`, both [N, dims]."""
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (ours, theirs))
    return float((a * b).sum(1).min())
