"""Attention over pages of many cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from packhorse import ops

Array = npt.NDArray[Any]
PAGE = ops.PAGE_TOKENS
SLOPES = 2.0 ** -np.arange(1, 41)
BIASES = np.random.default_rng(2).normal(0, 2, (40, 130)).astype(np.float32)


@dataclass(frozen=True)
class PagesCase:
    """New tokens of each text, and its length with them. Which kernel runs follows from the number
    of rows: those for prompts need some thousands, tokens times heads."""

    heads: int
    kv_heads: int
    head_dim: int
    texts: tuple[tuple[int, int], ...]
    options: dict[str, Any] = field(default_factory=dict)
    past: float = np.nan  # value in pages past a text's end
    late: float = 1  # scale of the last keys

    @property
    def cu_seqlens(self) -> list[int]:
        return [0, *np.cumsum([new for new, _ in self.texts]).tolist()]

    def kernel_options(self) -> dict[str, Any]:
        options = dict(self.options)
        if options.pop("alibi", False):
            options["alibi_slopes"] = SLOPES[: self.heads]
        if options.pop("distances", False):
            options["distance_bias"] = BIASES[: self.heads]
        return options

    def inputs(self) -> tuple[Array, list[Array], list[Array]]:
        """Queries of the new tokens, and keys and values of each text."""
        rng = np.random.default_rng(self.head_dim)
        q = rng.normal(0, 1.5, (self.cu_seqlens[-1], self.heads * self.head_dim))
        keys, values = [], []
        for _, length in self.texts:
            shape = (length, self.kv_heads * self.head_dim)
            keys.append(rng.normal(0, 1, shape) * np.linspace(1, self.late, length)[:, None])
            values.append(rng.normal(0, 1, shape))
        return q, keys, values

    def pages(self, of: list[Array], table: Array) -> Array:
        counts = [-(-length // PAGE) for _, length in self.texts]
        shape = (sum(counts) + 2, self.kv_heads, PAGE, self.head_dim)
        pages = np.full(shape, self.past, np.float32)
        for b, rows in enumerate(of):
            for first in range(0, len(rows), PAGE):
                part = rows[first : first + PAGE].reshape(-1, self.kv_heads, self.head_dim)
                pages[table[b, first // PAGE], :, : len(part)] = part.swapaxes(0, 1)
        return pages

    def rows_of(self, pieces: list[range]) -> list[int]:
        """A piece of each text's new tokens as rows of all of them."""
        return [
            first + i for first, piece in zip(self.cu_seqlens, pieces, strict=False) for i in piece
        ]

    def attend(self, dtype: str, pieces: list[range] | None = None) -> Array:
        """Results of all new tokens, or of a piece of each text alone, which has the same bits."""
        counts = [-(-length // PAGE) for _, length in self.texts]
        places = np.random.default_rng(1).permutation(sum(counts) + 2)
        table = np.full((len(counts), max(counts)), -1)
        for b, count in enumerate(counts):
            table[b, :count] = places[sum(counts[:b]) :][:count]
        q, keys, values = self.inputs()
        pieces = pieces or [range(new) for new, _ in self.texts]
        ends = [
            length - new + piece.stop
            for piece, (new, length) in zip(pieces, self.texts, strict=True)
        ]
        return ops.paged_attention(
            q[self.rows_of(pieces)], self.pages(keys, table), self.pages(values, table),
            [0, *np.cumsum([len(piece) for piece in pieces])], table, ends,
            num_heads=self.heads, device="cuda:0", dtype=dtype, **self.kernel_options(),
        )  # fmt: skip


# Texts of one chunk of keys, and of so many that every warp has some of its own.
MANY_SHORT = tuple((1, 1 + 37 * b % 128) for b in range(100))
UNEVEN = ((100, 355), (0, 40), (300, 300), (1, 1), (1, 700), (63, 64), (65, 129))
CASES = {
    "one-prompt": PagesCase(32, 8, 64, ((500, 500),)),
    "uneven-64": PagesCase(8, 2, 64, UNEVEN),
    "uneven-128": PagesCase(8, 2, 128, UNEVEN),
    "no-groups": PagesCase(12, 12, 64, UNEVEN),
    "no-groups-128": PagesCase(8, 8, 128, UNEVEN),
    "one-key-head": PagesCase(8, 1, 64, UNEVEN),
    "group-of-3": PagesCase(9, 3, 64, UNEVEN),
    "group-of-5": PagesCase(10, 2, 128, UNEVEN),
    "group-of-40": PagesCase(40, 1, 64, UNEVEN),
    "head-of-8": PagesCase(8, 2, 8, UNEVEN),
    "head-of-40": PagesCase(8, 2, 40, UNEVEN),
    "head-of-72": PagesCase(8, 2, 72, UNEVEN),
    "head-of-80": PagesCase(8, 2, 80, UNEVEN),
    "head-of-96": PagesCase(8, 4, 96, UNEVEN),
    "head-of-112": PagesCase(8, 2, 112, UNEVEN),
    "head-of-256": PagesCase(8, 2, 256, UNEVEN),  # too wide for Hopper's kernel
    "infinite-past": PagesCase(8, 2, 64, UNEVEN, past=np.inf),
    "infinite-past-128": PagesCase(8, 2, 128, UNEVEN, past=-np.inf),
    "narrow-window": PagesCase(8, 2, 64, UNEVEN, {"window": 5}),
    "window": PagesCase(8, 2, 128, UNEVEN, {"window": 100}),
    "wide-window": PagesCase(8, 2, 64, UNEVEN, {"window": 600}),
    "soft-cap": PagesCase(8, 2, 64, UNEVEN, {"soft_cap": 5.0}),
    "alibi": PagesCase(8, 2, 128, UNEVEN, {"alibi": True}),
    "all": PagesCase(6, 2, 64, UNEVEN, {"alibi": True, "soft_cap": 30.0, "window": 300}),
    "distances": PagesCase(12, 12, 64, UNEVEN, {"distances": True, "scale": 1.0}),
    "distances-128": PagesCase(8, 2, 128, UNEVEN, {"distances": True, "soft_cap": 30.0}),
    "distances-256": PagesCase(4, 2, 256, UNEVEN, {"distances": True}),
    "many-slabs": PagesCase(32, 8, 64, ((700, 700), (600, 1500), (1, 3000), (511, 512))),
    "many-slabs-128": PagesCase(32, 8, 128, ((700, 700), (400, 1300), (511, 512))),
    "many-chunks": PagesCase(4, 1, 64, ((1, 16390), (1, 300))),
    "many-chunks-128": PagesCase(4, 4, 128, ((1, 9000), (1, 4097))),
    "many-chunks-256": PagesCase(2, 1, 256, ((1, 5000),)),
    "growing-maximum": PagesCase(4, 1, 64, ((2, 9000), (3, 2500)), late=4),
    "many-short": PagesCase(12, 12, 64, MANY_SHORT),
    "many-short-groups": PagesCase(16, 4, 64, tuple((min(3, n), n) for _, n in MANY_SHORT)),
    "many-short-window": PagesCase(8, 8, 40, MANY_SHORT, {"window": 9, "alibi": True}),
    "windows-of-chunks": PagesCase(4, 1, 96, ((5, 9000),), {"window": 700}),
}
