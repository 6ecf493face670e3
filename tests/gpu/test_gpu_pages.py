"""Attention over pages by the kernels that are chosen by default, and by those that no GPU had run
before these tests: against float64, and the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pages_outputs
import pytest
import reference
import torch
from gpu_support import DEVICE, Precision
from packhorse import ops
from pages_outputs import CASES, name_of

Results = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Of all cases, by the value of PACKHORSE_UNPROVEN_KERNELS. A process reads it once."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for chosen in ("0", "1"):
        path = folder / f"{chosen}.npz"
        subprocess.run(
            [sys.executable, str(Path(pages_outputs.__file__)), str(path)],
            env={**os.environ, "PACKHORSE_UNPROVEN_KERNELS": chosen},
            check=True,
        )
        with np.load(path) as arrays:
            found[chosen] = dict(arrays)
    return found


@pytest.mark.parametrize("name", CASES)
def test_bits(name: str, precision: Precision, results: dict[str, Results]) -> None:
    old, new = (results[chosen][name_of(name, precision.name)] for chosen in ("0", "1"))
    wrong = np.flatnonzero((old.view(np.uint32) != new.view(np.uint32)).any(1))
    assert wrong.size == 0, f"{wrong.size} rows of {len(old)}, the first is {wrong[0]}"


@pytest.mark.parametrize("name", CASES)
def test_float64(name: str, precision: Precision, results: dict[str, Results]) -> None:
    case = CASES[name]
    q, keys, values = case.inputs()
    q, keys, values = (
        [precision.round(x).cpu().numpy() for x in rows] for rows in ([q], keys, values)
    )
    options = case.kernel_options()
    window = options.pop("window", -1)
    found = results["1"][name_of(name, precision.name)]
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
    found = ops.attention_over_pages(
        q, case.pages(keys, table), case.pages(values, table), case.cu_seqlens, table, [500],
        num_heads=case.heads, device=DEVICE, dtype=precision.name,
    )  # fmt: skip
    first = 300 // ops.PAGE_TOKENS * ops.PAGE_TOKENS
    np.testing.assert_array_equal(found[:first], clean[:first])
    assert not np.isfinite(found[300:]).any()


def test_empty(precision: Precision) -> None:
    pages = np.zeros((1, 2, ops.PAGE_TOKENS, 64), np.float32)
    for cu_seqlens, lens in (([0], []), ([0, 0, 0], [0, 5])):
        found = ops.attention_over_pages(
            np.zeros((0, 256)), pages, pages, cu_seqlens, np.zeros((len(lens), 1), int), lens,
            num_heads=4, device=DEVICE, dtype=precision.name,
        )  # fmt: skip
        assert found.shape == (0, 256)
