"""Sequences with padding in them, and the positions that skip it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from models import PADDING, random_sequences

POSITIONS = {"kind": "learned", "count": 520, "offset": 2}


def padded_sequences(lengths: list[int]) -> list[npt.NDArray[np.int32]]:
    """A third of each sequence is padding, the last token of every second, and all of the fifth."""
    random = np.random.default_rng(3)
    sequences = random_sequences(lengths)
    for i, ids in enumerate(sequences):
        ids[random.random(len(ids)) < (1 if i == 4 else 1 / 3)] = PADDING
        if i % 2:
            ids[-1:] = PADDING
    return sequences


def counted(ids: Any, cu_seqlens: Any) -> npt.NDArray[np.int32]:
    """Positions from 1 on of tokens that are no padding, and 0 of padding."""
    at = np.zeros(len(ids), np.int32)
    for begin, end in itertools.pairwise(cu_seqlens):
        kept = np.asarray(ids[begin:end]) != PADDING
        at[begin:end] = np.cumsum(kept) * kept
    return at
