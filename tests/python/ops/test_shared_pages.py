"""Attention of sequences that share their pages, as beams share a source: each row has the bits
that it has alone, and equals the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from packhorse import ops
from pages import PAGE

Array = npt.NDArray[Any]
NUM_PAGES = 30


class Cache:
    """Pages of random keys and values, which sequences name by their tables."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int) -> None:
        rng = np.random.default_rng(4)
        shape = (NUM_PAGES, kv_heads, PAGE, head_dim)
        self.keys, self.values = (rng.normal(0, 1, shape).astype(np.float32) for _ in range(2))
        self.heads, self.head_dim, self.rng = heads, head_dim, rng

    def queries(self, count: int) -> Array:
        return self.rng.normal(0, 1, (count, self.heads * self.head_dim)).astype(np.float32)

    def attend(
        self, q: Array, takes: list[int], table: list[list[int]], lengths: list[int], threads: int
    ) -> Array:
        width = max(map(len, table))
        rows = [row + [0] * (width - len(row)) for row in table]
        offsets = np.cumsum([0, *takes]).astype(np.int32)
        found = ops.paged_attention(
            q, self.keys, self.values, offsets, rows, lengths,
            num_heads=self.heads, causal=False, threads=threads,
        )  # fmt: skip
        return np.asarray(found)

    def expected(self, q: Array, table: list[int], length: int) -> Array:
        kv_heads = self.keys.shape[1]
        k, v = (
            part[table].transpose(0, 2, 1, 3).reshape(-1, kv_heads * self.head_dim)[:length]
            for part in (self.keys, self.values)
        )
        ends = [0, len(q)], [0, length]
        return reference.attention(q, k, v, *ends, self.heads, kv_heads, causal=False)


# (new tokens of each sequence, its pages, its keys): neighbours that share all, some or none.
SEQUENCES: dict[str, list[tuple[int, list[int], int]]] = {
    "beams": [(1, [3], 40)] * 4 + [(1, [5, 9], 100)] * 4 + [(1, [7], 1)] * 2,
    "many": [(1, [3, 4], 65)] * 9 + [(1, [8], 64)] * 40,
    "other pages": [(1, [3], 40), (1, [4], 40), (1, [3], 40), (1, [3], 40)],
    "other second page": [(1, [3, 4], 70), (1, [3, 5], 70), (1, [3, 5], 70)],
    "other length": [(1, [3], 40), (1, [3], 41), (1, [3], 41)],
    "several tokens": [(3, [3], 40), (1, [3], 40), (0, [3], 40), (5, [3], 40), (2, [6], 9)],
    "long": [(1, list(range(20)), 1230)] * 3 + [(1, [22], 30)] * 3,
}


@pytest.mark.parametrize("shape", [(2, 2, 16), (6, 2, 32), (4, 4, 64)], ids=str)
@pytest.mark.parametrize("name", SEQUENCES)
def test_shared_pages(name: str, shape: tuple[int, int, int]) -> None:
    cache = Cache(*shape)
    sequences = SEQUENCES[name]
    takes = [take for take, _, _ in sequences]
    q = cache.queries(sum(takes))
    tables, lengths = [pages for _, pages, _ in sequences], [keys for _, _, keys in sequences]
    for threads in (1, 3):
        together = cache.attend(q, takes, tables, lengths, threads)
        at = 0
        for take, pages, keys in sequences:
            rows = q[at : at + take]
            alone = cache.attend(rows, [take], [pages], [keys], 1) if take else rows
            assert together[at : at + take].tobytes() == alone.tobytes()
            if take:
                expected = cache.expected(rows, pages, keys)
                np.testing.assert_allclose(together[at : at + take], expected, atol=2e-6)
            at += take
