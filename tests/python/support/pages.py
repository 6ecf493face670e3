"""Sequences whose keys and values lie in pages, and attention over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from cases import offsets
from packhorse import ops
from precisions import Precision
from reference_low_precision import e4m3

Array = npt.NDArray[Any]
PAGE = ops.PAGE_TOKENS


def quantize_heads(x: Array) -> tuple[Array, Array]:
    """Numbers of e4m3 and the scale of each row, in float32 as the runtime computes them."""
    largest = np.maximum(np.abs(x).max(axis=1), np.float32(2**-64))
    numbers = e4m3(x * (np.float32(448) / largest)[:, None])
    return numbers, largest * np.float32(1 / 448)


class PagedSequences:
    """Random queries, keys and values of sequences of `lengths` tokens, and a cache for them.

    Pages are dealt in random order, and hold NaN where nothing has been appended.
    """

    def __init__(
        self,
        lengths: list[int],
        *,
        num_heads: int = 2,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        precision: Precision,
        device: str = "cpu",
        threads: int | None = None,
        seed: int = 0,
        order: int = 0,
        float8: bool = False,
    ) -> None:
        """`seed` makes the numbers, sequence by sequence, `order` the places of pages. `float8`:
        pages hold numbers of e4m3 with scales."""
        self.num_heads = num_heads
        self.on: dict[str, Any] = {"device": device, "dtype": precision.name, "threads": threads}
        self.lengths = lengths
        self.q, self.k, self.v = [], [], []
        for b, length in enumerate(lengths):
            rng = np.random.default_rng([seed, b])
            for rows, heads, scale in (
                (self.q, num_heads, 1.5),
                (self.k, num_kv_heads, 1),
                (self.v, num_kv_heads, 1),
            ):
                rows.append(precision.round(rng.normal(0, scale, (length, heads * head_dim))))
        counts = [-(-length // PAGE) for length in lengths]
        spare = 2  # pages that belong to nobody
        places = np.random.default_rng(order).permutation(sum(counts) + spare)
        self.table = np.full((len(lengths), max(counts, default=0)), -1)
        taken = 0
        for b, count in enumerate(counts):
            self.table[b, :count] = places[taken : taken + count]
            taken += count
        shape = (len(places), num_kv_heads, PAGE, head_dim)
        self.keys, self.values = (np.full(shape, np.nan, np.float32) for _ in range(2))
        self.scales: dict[str, Array] = {}
        if float8:
            for name in ("key_scales", "value_scales"):
                self.scales[name] = np.full(shape[:3], np.nan, np.float32)
        self.done = [0] * len(lengths)

    def _rows(self, of: list[Array], takes: dict[int, int]) -> Array:
        return np.concatenate(
            [of[b][self.done[b] : self.done[b] + count] for b, count in takes.items()]
        )

    def step(
        self, takes: dict[int, int], *, at_once: bool = False, **options: Any
    ) -> dict[int, Array]:
        """The next tokens of some sequences, as many as said: their rows by sequence. `at_once`:
        attention appends them itself."""
        table = self.table[list(takes)]
        cu_seqlens = offsets(list(takes.values()))
        kv_lens = [self.done[b] + count for b, count in takes.items()]
        q, k, v = (self._rows(rows, takes) for rows in (self.q, self.k, self.v))
        if at_once:
            options |= {"k": k, "v": v}
        else:
            ops.append_kv_cache(
                self.keys, self.values, k, v, cu_seqlens, table, kv_lens, **self.scales, **self.on
            )
        found = ops.paged_attention(
            q, self.keys, self.values, cu_seqlens, table, kv_lens,
            num_heads=self.num_heads, **options, **self.scales, **self.on,
        )  # fmt: skip
        for b, count in takes.items():
            self.done[b] += count
        return dict(zip(takes, np.split(found, cu_seqlens[1:-1]), strict=True))

    def as_cached(self, rows: Array) -> Array:
        """Keys or values as the pages hold them."""
        if not self.scales:
            return rows
        head_dim = self.keys.shape[-1]
        numbers, scales = quantize_heads(rows.reshape(-1, head_dim))
        return (numbers * scales[:, None]).reshape(rows.shape)

    def skip(self, b: int, count: int) -> None:
        """Tokens of one sequence that are appended without a query."""
        rows = {b: count}
        ops.append_kv_cache(
            self.keys, self.values, self._rows(self.k, rows), self._rows(self.v, rows), [0, count],
            self.table[[b]], [self.done[b] + count], **self.scales, **self.on,
        )  # fmt: skip
        self.done[b] += count
