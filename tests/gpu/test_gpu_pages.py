"""Attention over pages: against float64, and the bits of the kernel for prompts and of that for few
rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import reference
import torch
from gpu_support import DEVICE, Precision, attention, to_host
from packhorse import ops
from pages_cases import CASES, PAGE


@pytest.mark.parametrize("name", CASES)
def test_bits_of_few_rows(name: str, precision: Precision) -> None:
    """Up to 16 rows of a head of keys are computed by mma.sync, and prompts on Hopper by wgmma."""
    case = CASES[name]
    whole = case.attend(precision.name)
    most = max(1, 16 // (case.heads // case.kv_heads))
    for i in range(5):
        pieces = []
        for new, _ in case.texts:
            first = max(0, new - most) * i // 4
            pieces.append(range(first, min(new, first + most)))
        found = case.attend(precision.name, pieces)
        assert found.tobytes() == whole[case.rows_of(pieces)].tobytes()


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("many-short")])
def test_bits_of_short_texts_alone(name: str, precision: Precision) -> None:
    """A text alone is computed by the warps of a block together, each with its keys."""
    case = CASES[name]
    whole = case.attend(precision.name)
    for b in range(0, len(case.texts), 19):
        pieces = [range(new if i == b else 0) for i, (new, _) in enumerate(case.texts)]
        found = case.attend(precision.name, pieces)
        assert found.tobytes() == whole[case.rows_of(pieces)].tobytes(), b


@pytest.mark.parametrize("name", CASES)
def test_float64(name: str, precision: Precision) -> None:
    case = CASES[name]
    q, keys, values = case.inputs()
    q, keys, values = (
        [precision.round(x).cpu().numpy() for x in rows] for rows in ([q], keys, values)
    )
    options = case.kernel_options()
    window = options.pop("window", -1)
    found = case.attend(precision.name)
    bounds = case.cu_seqlens
    for b, (new, length) in enumerate(case.texts):
        rows = slice(bounds[b], bounds[b + 1])
        expected = reference.attention(
            q[0][rows], keys[b], values[b], [0, new], [0, length], case.heads, case.kv_heads,
            causal=True, window=(window, -1), **options,
        )  # fmt: skip
        # The weights of the values are rounded as well as the result.
        precision.check(found[rows], torch.as_tensor(expected, device="cuda"), steps=2)


def test_infinite_values(precision: Precision) -> None:
    """An infinite value spoils the rows that see its tile of keys, and no others."""
    case = CASES["one-prompt"]
    clean = case.attend(precision.name)
    q, keys, values = case.inputs()
    values[0][300, :] = np.inf
    table = np.arange(8)[None]
    found = ops.paged_attention(
        q, case.pages(keys, table), case.pages(values, table), case.cu_seqlens, table, [500],
        num_heads=case.heads, device=DEVICE, dtype=precision.name,
    )  # fmt: skip
    first = 300 // ops.PAGE_TOKENS * ops.PAGE_TOKENS
    np.testing.assert_array_equal(found[:first], clean[:first])
    assert not np.isfinite(found[300:]).any()


def test_empty(precision: Precision) -> None:
    pages = np.zeros((1, 2, ops.PAGE_TOKENS, 64), np.float32)
    for cu_seqlens, lens in (([0], []), ([0, 0, 0], [0, 5])):
        found = ops.paged_attention(
            np.zeros((0, 256)), pages, pages, cu_seqlens, np.zeros((len(lens), 1), int), lens,
            num_heads=4, device=DEVICE, dtype=precision.name,
        )  # fmt: skip
        assert found.shape == (0, 256)


# Rows of a step, and keys of the source that they attend to.
SOURCES = ((1, 700), (1, 64), (5, 0), (9, 1), (300, 1300), (0, 40), (70, 129), (1, 3000))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(12, 12, 64), (8, 2, 128), (4, 1, 256)]
)
@pytest.mark.parametrize("texts", [SOURCES, SOURCES[:2], SOURCES[:4]], ids=["all", "single", "few"])
def test_all_keys_of_sources(
    precision: Precision, heads: int, kv_heads: int, head_dim: int, texts: Any
) -> None:
    """Attention that is not causal, against float64, and the bits of each row alone."""
    rng = np.random.default_rng(3)
    counts, lengths = zip(*texts, strict=True)
    pages_of = [-(-length // PAGE) for length in lengths]
    table = np.full((len(texts), max(pages_of)), -1)
    places = rng.permutation(sum(pages_of) + 1)
    pages = [np.full((len(places), kv_heads, PAGE, head_dim), np.nan, np.float32) for _ in range(2)]
    rows: list[list[Any]] = [[], []]
    for b, (count, length) in enumerate(zip(pages_of, lengths, strict=True)):
        table[b, :count], places = places[:count], places[count:]
        for own, to in zip(rows, pages, strict=True):
            own.append(precision.round(rng.normal(size=(length, kv_heads * head_dim))))
            for first in range(0, length, PAGE):
                part = own[-1][first : first + PAGE].float().cpu().numpy()
                part = part.reshape(-1, kv_heads, head_dim).swapaxes(0, 1)
                to[table[b, first // PAGE], :, : part.shape[1]] = part
    q = precision.round(rng.normal(0, 1.5, (sum(counts), heads * head_dim)))
    bounds = [0, *np.cumsum(counts).tolist()]

    def attend(rows: Any, cu_seqlens: list[int], of: list[int]) -> Any:
        return ops.paged_attention(
            to_host(rows), *pages, cu_seqlens, table[of], [lengths[b] for b in of],
            num_heads=heads, causal=False, **precision.options(),
        )  # fmt: skip

    found = attend(q, bounds, list(range(len(texts))))
    expected = attention(
        q, torch.cat(rows[0]), torch.cat(rows[1]), bounds, [0, *np.cumsum(lengths).tolist()],
        heads, kv_heads,
    )  # fmt: skip
    precision.check(found, expected, steps=2)
    for b, (first, end) in enumerate(pairwise(bounds)):
        for row in {first, end - 1} if end > first else ():
            alone = attend(q[row : row + 1], [0, 1], [b])
            assert alone.tobytes() == found[row].tobytes(), (b, row)
