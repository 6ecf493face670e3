"""Operators that work row by row: norms, embeddings and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import BATCHES, POOLINGS, offsets
from gpu_support import Precision, layer_norm, norm_of, pool, rms_norm, to_host
from packhorse import ops
from reference import positions
from torch import Generator

HIDDEN_SIZES = [8, 16, 40, 64, 312, 384, 768, 1000, 1024, 2056, 4096, 12288, 16384, 20480, 32776]
LENGTHS = {**BATCHES, "long": [4096, 0, 1, 513]}


@pytest.mark.parametrize("size", HIDDEN_SIZES)
def test_norms(precision: Precision, random: Generator, size: int) -> None:
    gamma, beta, eps = norm_of(random, size)
    given = (to_host(gamma), to_host(beta))
    options: dict[str, Any] = {"eps": eps, **precision.options()}
    for rows in (0, 1, 70, 1000 if size <= 16384 else 200):
        x, residual = precision.normal(random, rows, size), precision.normal(random, rows, size)
        for more, total in ((None, x), (residual, x + residual)):
            actual = ops.layer_norm(to_host(x), *given, residual=to_host(more), **options)
            precision.check(actual, layer_norm(total, gamma, beta, eps), steps=2)
            actual = ops.rms_norm(to_host(x), given[0], residual=to_host(more), **options)
            precision.check(actual, rms_norm(total, gamma, eps), steps=2)
        actual = ops.layer_norm(to_host(x), given[0], **options)
        precision.check(actual, layer_norm(x, gamma, None, eps))


@pytest.mark.parametrize("size", [64, 768, 16384])
def test_layer_norm_of_a_large_mean(precision: Precision, random: Generator, size: int) -> None:
    """The statistics are exact enough, where E[x^2] - E[x]^2 in float32 would lose most digits."""
    x = precision.round(torch.randn(20, size, generator=random, device="cuda") + 200)
    gamma = torch.ones(size, dtype=torch.float64, device="cuda")
    actual = ops.layer_norm(to_host(x), to_host(gamma), **precision.options())
    precision.check(actual, layer_norm(x, gamma), steps=2)


def test_rows_do_not_depend_on_one_another(precision: Precision, random: Generator) -> None:
    """Small, medium and large batches have kernels of their own, which give the same bits."""
    for size in (40, 384, 768, 1024, 2056, 12288):
        gamma, beta, eps = norm_of(random, size)
        rows = (13 << 20) // size
        x = to_host(precision.normal(random, rows, size))
        options: dict[str, Any] = {"eps": eps, **precision.options()}
        whole = ops.layer_norm(x, to_host(gamma), to_host(beta), **options)
        for begin, end in [(0, 1), (3, 70), (rows - 1, rows), (99, 99 + rows // 3)]:
            part = ops.layer_norm(x[begin:end], to_host(gamma), to_host(beta), **options)
            assert part.tobytes() == whole[begin:end].tobytes()


def test_embeddings_do_not_depend_on_one_another(precision: Precision, random: Generator) -> None:
    """The bits are the same in small and large batches, with few and with many sequences."""
    sizes = (256, 312, 384, 768, 1024, 2056, 12288, 16384)
    # Groups of threads have more tokens in the last case than they look up at once (132 SMs).
    for size, longest in [*((size, (4 << 20) // size) for size in sizes), (4104, 6000)]:
        cu_seqlens = offsets([150, 0, 1, 33, *[7] * 40, longest])
        ids = np.random.default_rng(0).integers(0, 50, cu_seqlens[-1])
        words, *more = [to_host(precision.normal(random, rows, size)) for rows in (50, longest, 2)]
        gamma, beta, eps = norm_of(random, size)
        norm = (to_host(gamma), to_host(beta), eps)
        options: dict[str, Any]
        for options in ({"position": more[0], "type": more[1], "norm": norm}, {"norm": norm}, {}):
            options |= precision.options()
            whole = ops.embed(ids, cu_seqlens, words, **options)
            for first, last in [(0, 1), (1, 3), (2, 43), (44, 45)]:
                part = slice(cu_seqlens[first], cu_seqlens[last])
                own = cu_seqlens[first : last + 1] - cu_seqlens[first]
                alone = ops.embed(ids[part], own, words, **options)
                assert alone.tobytes() == whole[part].tobytes()


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("size", [8, 312, 768])
def test_embed(precision: Precision, random: Generator, lengths: list[int], size: int) -> None:
    word, position, type = tables = [precision.normal(random, rows, size) for rows in (50, 5000, 3)]
    cu_seqlens = offsets(lengths)
    numpy_random = np.random.default_rng(0)
    ids = numpy_random.integers(0, 50, cu_seqlens[-1])
    type_ids = numpy_random.integers(0, 3, ids.size)
    position_ids = numpy_random.integers(0, 4990, ids.size)
    own = positions(cu_seqlens)
    given = dict(zip(("word", "position", "type"), map(to_host, tables), strict=True))
    words, norm = given.pop("word"), norm_of(random, size)

    def check(expected: torch.Tensor, *names: str, **more: Any) -> None:
        some = {name: given[name] for name in names}
        options = {**some, **more, **precision.options()}
        precision.check(ops.embed(ids, cu_seqlens, words, **options), expected)
        host = (to_host(norm[0]), to_host(norm[1]), norm[2])
        actual = ops.embed(ids, cu_seqlens, words, norm=host, **options)
        precision.check(actual, layer_norm(expected, *norm), steps=2)

    check(word[ids])
    check(word[ids] + position[own], "position")
    check(word[ids] + position[own] + type[0], "position", "type")
    check(
        word[ids] + position[own + 2] + type[type_ids],
        "position",
        "type",
        type_ids=type_ids,
        position_offset=2,
    )
    check(
        word[ids] + position[position_ids + 10],
        "position",
        position_ids=position_ids,
        position_offset=10,
    )


@pytest.mark.parametrize("columns", [1, 33, 512, 1000, 151936])
def test_log_softmax(precision: Precision, random: Generator, columns: int) -> None:
    for rows in (0, 1, 70):
        x = precision.normal(random, rows, columns) * 4
        actual = ops.log_softmax(to_host(x), **precision.options())
        expected = torch.log_softmax(precision.round(x).double(), -1).cpu().numpy()
        np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-6)
        alone = ops.log_softmax(to_host(x[-1:]), **precision.options())
        np.testing.assert_array_equal(actual[-1:], alone)


def check_pool(
    precision: Precision, random: Generator, lengths: list[int], size: int, pooling: str
) -> None:
    cu_seqlens = offsets(lengths)
    x = precision.normal(random, int(cu_seqlens[-1]), size)
    for normalize in (False, True):
        actual = ops.pool(
            to_host(x), cu_seqlens, pooling, normalize=normalize, **precision.options()
        )
        assert actual.shape == (len(lengths), size)
        # Sums and results are float32 in every dtype.
        expected = pool(x, cu_seqlens.tolist(), pooling, normalize).cpu().numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)
        assert not actual[np.array(lengths, int) == 0].any()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_pool(precision: Precision, random: Generator, lengths: list[int], pooling: str) -> None:
    for size in (8, 312, 1024, 5000):
        check_pool(precision, random, lengths, size, pooling)


def test_pool_of_wide_rows(precision: Precision, random: Generator) -> None:
    for size in (4096, 16384, 20000, 40008):
        check_pool(precision, random, [3, 0, 1, 20], size, "mean")


def test_pool_does_not_depend_on_the_batch(precision: Precision, random: Generator) -> None:
    lengths = [1, 300, 0, 64, 65, 4000]
    cu_seqlens = offsets(lengths)
    x = to_host(precision.normal(random, int(cu_seqlens[-1]), 384))
    for pooling in POOLINGS:
        options: dict[str, Any] = {"normalize": True, **precision.options()}
        whole = ops.pool(x, cu_seqlens, pooling, **options)
        for b, length in enumerate(lengths):
            rows = x[cu_seqlens[b] : cu_seqlens[b + 1]]
            alone = ops.pool(rows, [0, length], pooling, **options)
            assert alone[0].tobytes() == whole[b].tobytes(), (pooling, length)
