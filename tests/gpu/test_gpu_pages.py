"""Attention over pages: against float64, and the bits of the kernel for prompts and of that for few
rows."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from gpu_support import DEVICE, Precision
from packhorse import ops
from pages_cases import CASES


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
