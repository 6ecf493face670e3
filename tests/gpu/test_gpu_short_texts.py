"""Texts of up to 32 tokens, whose attention single warps compute on Hopper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cases import offsets
from combinations import pairwise
from gpu_support import DEVICE, Precision, attention, to_host
from models import random_sequences, tiny_spec, write_model
from packhorse import PackedTokens, Session, ops
from torch import Generator

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability(0) != (9, 0), reason="needs compute capability 9.0"
)
MOST = 32
HEAD_DIMS = [8, 24, 32, 40, 64, 72, 96, 104, 128]
# Every length that a warp takes, empty texts between them, and lengths that it does not take.
EVERY = [0, *range(MOST + 1), 0]
UNEVEN = [5, 33, 1, 0, 300, 32, 31, 129, 17, 16, 700, 8, 9, 0, 64]
OUTPUTS = ["hidden", "embedding", "pooled"]
Array = npt.NDArray[np.float32]


def check(
    precision: Precision,
    random: Generator,
    q_lengths: list[int],
    kv_lengths: list[int] | None = None,
    head_dim: int = 64,
    num_heads: int = 2,
    num_kv_heads: int | None = None,
    **options: Any,
) -> None:
    num_kv_heads = num_kv_heads or num_heads
    cu_q = offsets(q_lengths)
    cu_k = cu_q if kv_lengths is None else offsets(kv_lengths)
    q = precision.normal(random, int(cu_q[-1]), num_heads * head_dim, scale=1.5)
    k, v = (precision.normal(random, int(cu_k[-1]), num_kv_heads * head_dim) for _ in range(2))
    found = ops.attention(
        to_host(q),
        to_host(k),
        to_host(v),
        cu_q,
        cu_k,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        **{name: to_host(x) if torch.is_tensor(x) else x for name, x in options.items()},
        **precision.options(),
    )
    expected = attention(q, k, v, cu_q.tolist(), cu_k.tolist(), num_heads, num_kv_heads, **options)
    precision.check(found, expected, steps=2)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_length(precision: Precision, random: Generator, causal: bool, head_dim: int) -> None:
    check(precision, random, EVERY, head_dim=head_dim, num_heads=3, causal=causal)
    check(precision, random, EVERY * 40, head_dim=head_dim, num_heads=12, causal=causal)
    check(precision, random, UNEVEN, head_dim=head_dim, num_heads=4, causal=causal)


def test_nothing(precision: Precision, random: Generator) -> None:
    for lengths in ([], [0], [0, 0, 0], [1], [0, 1]):
        check(precision, random, lengths)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 2), (6, 1), (5, 5)])
def test_grouped_queries(
    precision: Precision, random: Generator, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    heads: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    check(precision, random, UNEVEN, head_dim=head_dim, **heads)


@pairwise(
    window=[(-1, 0), (0, 0), (0, -1), (3, 2), (-1, 5), (16, 0), (9999, 1)],
    causal=[False, True],
    head_dim=[32, 64, 128],
)
def test_windows(
    precision: Precision, random: Generator, window: tuple[int, int], causal: bool, head_dim: int
) -> None:
    check(precision, random, EVERY, head_dim=head_dim, window=window, causal=causal)
    check(precision, random, UNEVEN, head_dim=head_dim, window=window, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_queries_and_keys_of_other_lengths(
    precision: Precision, random: Generator, causal: bool, head_dim: int
) -> None:
    """Both lengths decide who computes a sequence; some queries see no key."""
    queries = [3, 1, 0, 32, 5, 33, 32, 10, 4, 7]
    keys = [32, 1, 7, 32, 33, 32, 4, 4, 0, 300]
    check(precision, random, queries, keys, head_dim=head_dim, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_additive_terms(
    precision: Precision, random: Generator, causal: bool, head_dim: int
) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.01, 2.0], dtype=torch.float64, device="cuda")
    table = torch.randn(32, 4, generator=random, device="cuda").double()
    for lengths in (EVERY, UNEVEN):
        options: dict[str, Any] = {"head_dim": head_dim, "num_heads": 4, "causal": causal}
        check(precision, random, lengths, alibi_slopes=slopes, **options)
        for distance in (20, 128):
            check(precision, random, lengths, bucket_table=table, max_distance=distance, **options)


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
@pytest.mark.parametrize("term", [False, True])
def test_bits_do_not_depend_on_the_batch(
    precision: Precision, random: Generator, term: bool, head_dim: int
) -> None:
    """A short text has the same bits alone, among short ones, and beside long ones, which other
    kernels compute in the same launch; and so have long ones beside short ones."""
    heads = 3
    lengths = [*range(1, MOST + 3), 128, 129, 500]
    rows = {
        n: [to_host(precision.normal(random, n, heads * head_dim, scale=1.5)) for _ in "qkv"]
        for n in lengths
    }
    options: dict[str, Any] = {"num_heads": heads, **precision.options()}
    if term:
        options["alibi_slopes"] = np.array([0.5, 0.1, 0.02], np.float32)

    def run(batch: list[int]) -> list[bytes]:
        q, k, v = (np.concatenate([rows[n][i] for n in batch]) for i in range(3))
        cu_seqlens = offsets(batch)
        found = ops.attention(q, k, v, cu_seqlens, **options)
        return [part.tobytes() for part in np.split(found, cu_seqlens[1:-1])]

    alone = {n: run([n])[0] for n in lengths}
    batches = [lengths, lengths[::-1], lengths[:MOST], [500, 3] * 30, [3, 17, 32] * 200]
    for batch in (*batches, [129, *range(1, MOST + 1), 500], [33, 3, 34]):
        assert run(batch) == [alone[n] for n in batch]


def test_not_finite_neighbours(precision: Precision, random: Generator) -> None:
    lengths = [7, 16, 9, 32, 1, 40, 12]
    cu_seqlens = offsets(lengths)
    options: dict[str, Any] = {"num_heads": 2, **precision.options()}
    q, k, v = (to_host(precision.normal(random, sum(lengths), 128)) for _ in "qkv")
    clean = ops.attention(q, k, v, cu_seqlens, **options)
    for bad in range(len(lengths)):
        rows = slice(*cu_seqlens[bad : bad + 2])
        poisoned = [x.copy() for x in (q, k, v)]
        for x in poisoned:
            x[rows] = np.nan
        found = ops.attention(*poisoned, cu_seqlens, **options)
        assert np.isnan(found[rows]).all()
        others = np.delete(np.arange(sum(lengths)), rows)
        assert found[others].tobytes() == clean[others].tobytes()


def test_large_scores(precision: Precision) -> None:
    q = np.full((3, 32), 30.0, np.float32)
    k = np.stack([np.full(32, x, np.float32) for x in (10.0, 9.0, -10.0)])
    v = np.stack([np.full(32, x, np.float32) for x in (1.0, 2.0, 3.0)])
    found = ops.attention(q, k, v, [0, 3], num_heads=1, **precision.options())
    assert (found == 1).all()


@pytest.fixture(scope="module", params=[(64, 2), (192, 3), (256, 2)], ids=str)
def session(
    request: pytest.FixtureRequest, precision: Precision, tmp_path_factory: pytest.TempPathFactory
) -> Session:
    hidden_size, num_heads = request.param
    spec = tiny_spec(hidden_size=hidden_size, num_heads=num_heads, intermediate_size=128)
    folder = write_model(tmp_path_factory.mktemp("short"), spec)
    return Session.load(folder, DEVICE, precision.name, max_tokens=16384, max_sequences=2048)


BATCHES = {
    "short": [3, 9, 32, 1, 0, 17],
    "many": [3 + i % 7 for i in range(1500)],
    "mixed": [3, 40, 128, 9],
    "mixed and long": [3, 200, 31, 33, 0, 300],
    "none short": [33, 100, 64],
    "none short, one long": [33, 290],
    "one": [7],
    "one long": [250],
}


def test_what_runs(session: Session) -> None:
    def kernels(lengths: list[int]) -> str:
        line = session.explain([[1] * n for n in lengths])[0]
        return line[line.index("hopper (") :]

    warps = "warps up to 32 tokens"
    for name in ("short", "many", "one"):
        assert kernels(BATCHES[name]).startswith(f"hopper ({warps})")
    for name in ("mixed", "mixed and long"):
        assert f", {warps})" in kernels(BATCHES[name])
    for name in ("none short", "none short, one long", "one long"):
        assert "warps" not in kernels(BATCHES[name])


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_host_and_device_arrays(session: Session, lengths: list[int]) -> None:
    """Same bits from the host, from the device, without a recording, and alone."""
    rows = random_sequences(lengths, 50)
    ids, cu_seqlens = np.concatenate(rows).astype(np.int32), offsets(lengths)
    expected = session.run((ids, cu_seqlens), outputs=OUTPUTS)
    there = tuple(torch.as_tensor(x, device="cuda") for x in (ids, cu_seqlens))
    from_device = session.run(there, outputs=OUTPUTS, on_device=False)
    positions = np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)
    eager = session.run(PackedTokens(ids, cu_seqlens, position_ids=positions), outputs=OUTPUTS)
    for name in OUTPUTS:
        bits = getattr(expected, name).tobytes()
        assert getattr(from_device, name).tobytes() == bits, name
        assert getattr(eager, name).tobytes() == bits, name
    parts = expected.unpack()
    for i in range(0, len(rows), max(1, len(rows) // 9)):
        if lengths[i] > 0:
            assert session.run([rows[i]]).hidden.tobytes() == parts[i].tobytes()


def test_float8(tmp_path: Path) -> None:
    """Layers in float8 take the results of attention in e4m3, from warps as from tiles."""
    spec = tiny_spec(hidden_size=128, num_heads=2, intermediate_size=256)
    folder = write_model(tmp_path, spec)
    quantized = Session.load(folder, DEVICE, "float8", max_tokens=4096, max_sequences=256)
    half = Session.load(folder, DEVICE, "float16", max_tokens=4096, max_sequences=256)
    lengths = [3, 32, 200, 1, 17, 33, 0, 9]
    rows = random_sequences(lengths, 50)
    found, near = quantized.run(rows), half.run(rows)
    error = np.linalg.norm(found.hidden - near.hidden) / np.linalg.norm(near.hidden)
    assert error < 0.1
    for row, part in zip(rows, found.unpack(), strict=True):
        assert quantized.run([row]).hidden.tobytes() == part.tobytes()
