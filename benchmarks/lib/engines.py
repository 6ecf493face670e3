"""Engines are what is timed: anything that runs a batch of token ids.

All engines take the same lists of ids. Packing or padding them, masks and copies are part of an
engine's time. Packhorse's engine is here; those of the peers are in peers.py and onnx_peers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
from figures import DTYPES, PACKHORSE
from workloads import Batch

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Engine:
    name: str
    dtype: str  # dtype of the arithmetic
    run: Callable[[Batch], Any]
    # (the result of `run`, the batch) -> the last hidden state [T, hidden_size] without padding.
    hidden: Callable[[Any, Batch], FloatArray]


def pad(batch: Batch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns (ids, mask), both int64[B, S]."""
    ids = np.zeros((len(batch), max(len(row) for row in batch)), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(batch):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask


def unpad(hidden: FloatArray, batch: Batch) -> FloatArray:
    return np.concatenate([hidden[i, : len(row)] for i, row in enumerate(batch)])


def packhorse_engines(folder: Path, _cache: Path, threads: int) -> Iterator[Engine]:
    for dtype in DTYPES:
        try:
            session = packhorse.Session.load(folder, dtype=dtype, threads=threads)
        except RuntimeError as error:  # the processor lacks the dtype
            print(f"{PACKHORSE} {dtype} left out: {error}")
            continue
        yield Engine(PACKHORSE, dtype, session.run, lambda result, batch: result.hidden)
