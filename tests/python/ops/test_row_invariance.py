"""A token's row is the same, to the bit, alone and among any number of others: dense layers, feed
forward, norms, embeddings and rotations, of single tokens that are decoded as of long prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from packhorse import ops
from precisions import PRECISIONS, Precision, available

ROWS = 300
# Parts of the rows: single ones at the edges of tiles, a few, many.
PARTS = [
    *((i, i + 1) for i in (0, 1, 13, 14, 63, 64, 127, 255, 299)),
    *((i, i + 2) for i in (0, 15, 297)),
    *((i, i + 7) for i in (0, 29, 250)),
    *((i, i + 64) for i in (0, 1, 200)),
    (0, 300),
]
Operator = Callable[..., Any]


@pytest.fixture(
    scope="module", params=[*PRECISIONS, Precision("int8", 0)], ids=lambda precision: precision.name
)
def precision(request: pytest.FixtureRequest, device: str) -> Precision:
    return available(request.param, device)


def numbers(*shape: int, scale: float = 1) -> Any:
    return np.random.default_rng(sum(shape)).normal(0, scale, shape).astype(np.float32)


def check(operator: Operator, rows: dict[str, Any]) -> None:
    """`operator` of parts of the rows against the whole; `rows` has arguments by token."""
    whole = operator(**rows)
    assert np.isfinite(whole).all()
    for begin, end in PARTS:
        part = operator(**{name: of[begin:end] for name, of in rows.items()})
        assert part.tobytes() == whole[begin:end].tobytes(), (begin, end)


@pytest.mark.parametrize(
    ("k", "n"), [(16, 48), (64, 2048), (96, 96), (576, 960), (576, 576), (1536, 576), (100, 1000)]
)
def test_dense_layers(device: str, precision: Precision, k: int, n: int) -> None:
    weight, bias = numbers(n, k, scale=k**-0.5), numbers(n)
    norm = (numbers(n), None, 1e-5)

    def gemm(**rows: Any) -> Any:
        return ops.gemm(weight=weight, device=device, dtype=precision.name, **rows)

    check(gemm, {"x": numbers(ROWS, k)})
    check(lambda **rows: gemm(bias=bias, norm=norm, **rows),
          {"x": numbers(ROWS, k), "residual": numbers(ROWS, n)})  # fmt: skip


@pytest.mark.parametrize(("hidden", "inner"), [(64, 192), (192, 512), (576, 1536)])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward(
    device: str, precision: Precision, hidden: int, inner: int, gated: bool
) -> None:
    up, gate = ((numbers(inner, hidden, scale=s), None) for s in (0.1, 0.09))
    down = (numbers(hidden, inner, scale=0.05), None)

    def feed_forward(**rows: Any) -> Any:
        return ops.feed_forward(
            up=up, down=down, gate=gate if gated else None, activation="silu", device=device,
            dtype=precision.name, **rows,
        )  # fmt: skip

    check(feed_forward, {"x": numbers(ROWS, hidden), "residual": numbers(ROWS, hidden)})


@pytest.mark.arm
def test_heads_at_their_positions(device: str, precision: Precision) -> None:
    """Tokens have given positions, as those of a step have."""
    weight, frequencies = numbers(5 * 32, 64, scale=0.1), numbers(16)
    gamma = (np.abs(numbers(32)), 1e-6)
    rows = {"x": numbers(ROWS, 64), "position_ids": np.arange(ROWS) * 7 % 1000}

    def project(x: Any, position_ids: Any) -> Any:
        return ops.qkv_rope(
            x, weight, None, [0, len(x)], num_heads=3, num_kv_heads=1, frequencies=frequencies,
            position_ids=position_ids, query_norm=gamma, key_norm=gamma, device=device,
            dtype=precision.name,
        )  # fmt: skip

    check(project, rows)
    rows["x"] = numbers(ROWS, 96)

    def rope(x: Any, position_ids: Any) -> Any:
        return ops.rope(
            x, [0, len(x)], frequencies, num_heads=3, position_ids=position_ids, device=device,
            dtype=precision.name,
        )  # fmt: skip

    check(rope, rows)


@pytest.mark.arm
def test_embeddings_and_norms(device: str, precision: Precision) -> None:
    table, positions = numbers(50, 576), numbers(ROWS, 576)
    gamma, beta = numbers(576), numbers(577)[:576]
    on: dict[str, Any] = {"device": device, "dtype": precision.name}

    def embed(ids: Any, position_ids: Any) -> Any:
        return ops.embed(
            ids, [0, len(ids)], table, position=positions, position_ids=position_ids,
            norm=(gamma, beta, 1e-5), **on,
        )  # fmt: skip

    check(embed, {"ids": np.arange(ROWS) % 50, "position_ids": np.arange(ROWS)[::-1].copy()})
    rows = {"x": numbers(ROWS, 576), "residual": numbers(ROWS, 576)}
    check(lambda **rows: ops.rms_norm(gamma=gamma, **on, **rows), rows)
    check(lambda **rows: ops.layer_norm(gamma=gamma, beta=beta, **on, **rows), rows)
