"""A row of attention over pages is one expression of its own position: the same bits however its
sequence was cut into steps, whatever else is in the batch, and wherever its pages lie."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pages import PagedSequences
from precisions import Precision

SLOPES = [0.5, 0.25, 0.0, 1.0, 0.02, 0.125]
BIASES = np.random.default_rng(1).normal(0, 2, (6, 130)).astype(np.float32)
LENGTH = 3 * 512 + 1
# Positions before and after the edges of vectors, pages and chunks.
EDGES = sorted(
    {
        min(max(edge + near, 0), LENGTH - 1)
        for edge in (0, 16, 32, 64, 128, 192, 256, 448, 512, 576, 1024, 1088, 1536)
        for near in (-2, -1, 0, 1)
    }
)
CASES: dict[str, dict[str, Any]] = {
    "plain": {"shape": (1, 1, 64)},
    "groups": {"shape": (6, 2, 32)},
    "wide": {"shape": (4, 1, 80), "scale": 0.2},
    "narrow window": {"shape": (3, 1, 32), "window": 7},
    "window": {"shape": (2, 1, 32), "window": 100},
    "wide window": {"shape": (2, 2, 32), "window": 600},
    "soft cap": {"shape": (2, 1, 32), "soft_cap": 5.0},
    "alibi": {"shape": (6, 1, 32), "alibi_slopes": SLOPES},
    "distances": {"shape": (6, 2, 32), "distance_bias": BIASES},
    "float8": {"shape": (6, 2, 32), "float8": True},
}
# Under the instruction sets of older processors, one of each is enough.
OLDER = "ONEDNN_MAX_CPU_ISA" in os.environ
SEEDS = [0] if OLDER else [0, 1, 2]
THREADS = [3] if OLDER else [1, 2, 3, 7]
Rows = npt.NDArray[np.float32]


class Case:
    def __init__(self, name: str, precision: Precision, device: str) -> None:
        self.options = dict(CASES[name])
        self.shape = self.options.pop("shape")
        self.on: dict[str, Any] = {"precision": precision, "device": device}
        if self.options.pop("float8", False):
            self.on["float8"] = True
        self.whole = self.sequences([LENGTH]).step({0: LENGTH}, **self.options)[0]
        assert np.isfinite(self.whole).all()

    def sequences(self, lengths: list[int], **more: Any) -> PagedSequences:
        heads, kv_heads, head_dim = self.shape
        return PagedSequences(
            lengths, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, **self.on, **more
        )

    def check(self, found: Rows, first: int) -> None:
        """Rows of sequence 0 from position `first` on."""
        expected = self.whole[first : first + len(found)]
        wrong = [
            first + i for i in range(len(found)) if found[i].tobytes() != expected[i].tobytes()
        ]
        assert not wrong, f"positions {wrong} of rows {first} to {first + len(found)} changed"


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, precision: Precision, device: str) -> Case:
    return Case(request.param, precision, device)


def test_single_tokens(case: Case) -> None:
    """Decoded at the edges, with nothing in the cache after it."""
    sequences = case.sequences([LENGTH], order=1)
    for position in EDGES:
        sequences.skip(0, position - sequences.done[0])
        found = sequences.step({0: 1}, at_once=position % 2 == 0, **case.options)
        case.check(found[0], position)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_cuts(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sequences = case.sequences([LENGTH], order=seed)
    while sequences.done[0] < LENGTH:
        first = sequences.done[0]
        count = min(int(rng.choice([1, 2, 5, 16, 31, 33, 64, 100, 300])), LENGTH - first)
        found = sequences.step({0: count}, at_once=bool(rng.integers(2)), **case.options)
        case.check(found[0], first)


@pytest.mark.parametrize("length", [1, 17, 64, 65, 512, 513, 1025])
def test_lengths(case: Case, length: int) -> None:
    """Prompts of every kind of length, at once and with a first token of their own."""
    case.check(case.sequences([LENGTH]).step({0: length}, **case.options)[0], 0)
    if length > 1:
        sequences = case.sequences([LENGTH])
        case.check(sequences.step({0: 1}, **case.options)[0], 0)
        case.check(sequences.step({0: length - 1}, **case.options)[0], 1)


@pytest.mark.parametrize("threads", THREADS)
def test_neighbours_and_threads(case: Case, threads: int) -> None:
    """Long and short neighbours, prompts and single tokens, on every number of threads."""
    lengths = [LENGTH, 1400, 3, 200, 64, 700]
    sequences = case.sequences(lengths, threads=threads, order=threads)
    for b, count in ((0, 1020), (1, 1399), (5, 650)):
        sequences.skip(b, count)
    for takes in (
        {1: 1, 0: 1, 2: 3},
        {0: 3, 3: 190},
        {0: 1},
        {4: 64, 5: 49, 0: 70},
        {5: 1, 3: 1, 0: 1},
        {0: 400},
    ):
        first = sequences.done[0]
        found = sequences.step(takes, at_once=threads > 2, **case.options)
        case.check(found[0], first)
