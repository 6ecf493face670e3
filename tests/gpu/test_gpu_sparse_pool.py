"""Sparse pooling by maximum and by sum, with sequences that tiles and chunks of rows cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cases import mixed_lengths, offsets
from combinations import pairwise
from consumers import load
from gpu_support import Array, Precision, linear, to_host, vector
from models import HEAD_OPTIONS, tiny_spec, write_model
from packhorse import ops
from torch import Generator, Tensor

pytestmark = pytest.mark.usefixtures("kernels")

LENGTHS = {
    "tile-edges": [127, 1, 128, 129, 0, 15, 16, 17, 63, 64, 65],
    "of-one": [1] * 300,
    "mostly-empty": [0, 0, 3, *[0] * 400, 200, 0],
    "short": [n % 7 for n in range(400)],
    "long": [1500, 2],
    "many": mixed_lengths(40, 300),
}


def expected_weights(
    logits: Tensor, lengths: list[int], sum: bool = False, twice: bool = False
) -> Tensor:
    terms = logits.clamp(min=0).log1p()
    if twice:
        terms = terms.log1p()
    rows = [part.sum(0) if sum else part.amax(0) for part in terms.split(lengths) if len(part)]
    weights = logits.new_zeros(len(lengths), logits.shape[1])
    weights[[i for i, length in enumerate(lengths) if length]] = torch.stack(rows)
    return weights


@pairwise(
    how=[(False, False), (False, True), (True, False)],
    lengths=LENGTHS,
    sizes=[(8, 8), (312, 200), (768, 1000)],
)
def test_lengths(
    precision: Precision,
    random: Generator,
    how: tuple[bool, bool],
    lengths: list[int],
    sizes: tuple[int, int],
) -> None:
    (sum, twice), (k, n) = how, sizes
    cu_seqlens = offsets(lengths)
    x = precision.normal(random, int(cu_seqlens[-1]), k)
    weight, bias = precision.normal(random, n, k, scale=k**-0.5), vector(random, n, -1)
    for b in (bias, None):
        found = ops.sparse_pool(
            to_host(x),
            to_host(weight),
            cu_seqlens,
            bias=to_host(b),
            sum=sum,
            twice=twice,
            **precision.options(),
        )
        expected = expected_weights(linear(x, weight, b), lengths, sum, twice)
        precision.check(found, expected, steps=2 if sum else 1)


def test_a_vocabulary(precision: Precision, random: Generator) -> None:
    """The vocabulary is as large as BERT's. Each sequence has the same bits when it is alone."""
    lengths = [512, 3, 0, 180, 300, 129]
    cu_seqlens = offsets(lengths)
    x = precision.normal(random, int(cu_seqlens[-1]), 768)
    weight, bias = precision.normal(random, 30528, 768, scale=768**-0.5), vector(random, 30528, -3)

    def pool(rows: Tensor, parts: list[int]) -> Array:
        found: Array = ops.sparse_pool(
            to_host(rows),
            to_host(weight),
            offsets(parts),
            bias=to_host(bias),
            **precision.options(),
        )
        return found

    found = pool(x, lengths)
    precision.check(found, expected_weights(linear(x, weight, bias), lengths))
    for i in (0, 1, 3):
        alone = pool(x[cu_seqlens[i] : cu_seqlens[i + 1]], lengths[i : i + 1])
        assert alone.tobytes() == found[i : i + 1].tobytes(), i


def test_neighbours_do_not_leak(precision: Precision, random: Generator) -> None:
    lengths = [5, 130, 7, 1, 300, 2]
    cu_seqlens = offsets(lengths)
    x, weight = precision.normal(random, int(cu_seqlens[-1]), 64), precision.normal(random, 72, 64)
    options = precision.options()
    clean = ops.sparse_pool(to_host(x), to_host(weight), cu_seqlens, **options)
    for b in range(len(lengths)):
        bad = x.clone()
        bad[cu_seqlens[b]] = torch.nan
        found = ops.sparse_pool(to_host(bad), to_host(weight), cu_seqlens, **options)
        others = np.arange(len(lengths)) != b
        assert found[others].tobytes() == clean[others].tobytes(), b
        assert np.isnan(found[b]).all()


def test_hopper_plans_no_logits(kernels: str, tmp_path: Path) -> None:
    session = load(write_model(tmp_path, tiny_spec(**HEAD_OPTIONS["sparse"])))
    names = {buffer.name for buffer in session.memory_plan.arena.buffers}
    assert ("sparse_workspace" in names) == (kernels == "portable")
