"""`packhorse.ops.cca` on every device, against float64 and step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import reference_cca
from cases import BATCHES, offsets
from packhorse import ops
from precisions import Precision

pytestmark = pytest.mark.arm

Random = np.random.Generator

# (num_heads, num_kv_heads, head_dim, depthwise width, grouped width)
SIZES = [
    (4, 2, 8, 2, 2),
    (8, 2, 128, 2, 2),
    (3, 1, 26, 3, 2),
    (3, 3, 10, 1, 4),
    (6, 3, 40, 4, 1),
    (2, 1, 80, 1, 1),
    (2, 2, 7, 8, 8),
]


@pytest.fixture
def on(device: str, precision: Precision) -> Any:
    return {"device": device, "dtype": precision.name}


def make(
    rng: Random,
    precision: Precision,
    lengths: list[int],
    sizes: tuple[int, ...] = SIZES[0],
    rotated: bool = True,
) -> dict[str, Any]:
    heads, kv, d, first, second = sizes
    columns = (heads + kv) * d

    def normal(scale: float, *shape: int) -> Any:
        return rng.normal(0, scale, shape).astype(np.float32)

    cu_seqlens = offsets(lengths)
    return {
        "latents": precision.round(normal(1, cu_seqlens[-1], (heads + 2 * kv) * d)),
        "cu_seqlens": cu_seqlens,
        "depthwise": (normal(first**-0.5, columns, first), normal(0.5, columns)),
        "grouped": (
            precision.round(normal((second * d) ** -0.5, columns, d, second)),
            normal(0.5, columns),
        ),
        "temperature": rng.uniform(0.5, 2, kv).astype(np.float32),
        "num_heads": heads,
        "frequencies": reference.rope_frequencies(100.0, d // 4 * 2) if rotated and d > 7 else None,
        "first_values": precision.round(normal(1, kv * d)) if rotated else None,
    }


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_batches(on: Any, precision: Precision, rng: Random, lengths: list[int]) -> None:
    given = make(rng, precision, lengths)
    expected = reference_cca.cca(**given)
    precision.check(ops.cca(**given, **on), expected, steps=2)


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes(
    on: Any, precision: Precision, rng: Random, sizes: tuple[int, ...], rotated: bool
) -> None:
    if sizes[1] * sizes[2] % 2:
        sizes = (sizes[0], 2 * sizes[1], *sizes[2:])
    given = make(rng, precision, [1, 0, 50, 3, 7], sizes, rotated)
    expected = reference_cca.cca(**given)
    precision.check(ops.cca(**given, **on), expected, steps=2)


def test_positions(on: Any, precision: Precision, rng: Random) -> None:
    """Positions concern rotations alone: the convolutions go by the order of the batch."""
    given = make(rng, precision, [5, 3]) | {"position_ids": rng.integers(0, 90, 8)}
    expected = reference_cca.cca(**given)
    precision.check(ops.cca(**given, **on), expected, steps=2)


def sequences_of(given: dict[str, Any]) -> list[Any]:
    return np.split(given["latents"], given["cu_seqlens"][1:-1])


def test_the_same_bits_alone(on: Any, precision: Precision, rng: Random) -> None:
    given = make(rng, precision, [3, 130, 1, 0, 49, 2], SIZES[1])
    together = ops.cca(**given, **on)
    others = ops.cca(**given, **on, threads=1)
    np.testing.assert_array_equal(others, together)
    rows = np.split(together, given["cu_seqlens"][1:-1])
    for latents, expected in zip(sequences_of(given), rows, strict=True):
        alone = given | {"latents": latents, "cu_seqlens": [0, len(latents)]}
        np.testing.assert_array_equal(ops.cca(**alone, **on), expected)


def test_neighbours_of_nan(on: Any, precision: Precision, rng: Random) -> None:
    given = make(rng, precision, [4, 5, 6])
    clean = ops.cca(**given, **on)
    given["latents"][4:9] = np.nan
    found = ops.cca(**given, **on)
    np.testing.assert_array_equal(
        found[[*range(4), *range(9, 15)]], clean[[*range(4), *range(9, 15)]]
    )
    assert np.isnan(found[4:9]).all(0).any()


@pytest.mark.parametrize("sizes", [*SIZES[:3], SIZES[5], (4, 2, 8, 5, 4)])
def test_step_by_step(on: Any, precision: Precision, rng: Random, sizes: tuple[int, ...]) -> None:
    """Any steps give the bits of the whole sequences, over pages in any order."""
    lengths = [150, 64, 1, 65, 130]
    given = make(rng, precision, lengths, sizes)
    whole = np.split(ops.cca(**given, **on), given["cu_seqlens"][1:-1])
    latents = sequences_of(given)
    pages = rng.permutation(14).reshape(-1)
    counts = [-(-n // ops.PAGE_TOKENS) for n in lengths]
    table = np.full((5, 3), -1)
    for b, count in enumerate(counts):
        table[b, :count] = pages[sum(counts[:b]) : sum(counts[: b + 1])]
    slots = max(1, sizes[3] + sizes[4] - 2)
    rows = ops.LatentState.empty(14, slots, *sizes[:3])
    rows[:] = np.nan
    done, found = [0] * 5, [[] for _ in range(5)]
    while True:
        takes = {b: min(n - done[b], int(rng.choice([1, 1, 2, 5, 63, 64, 70])))
                 for b, n in enumerate(lengths) if done[b] < n and rng.random() < 0.7}  # fmt: skip
        if not takes and done == lengths:
            break
        cu_seqlens = offsets(list(takes.values()))
        step = given | {
            "latents": np.concatenate(
                [latents[b][done[b] : done[b] + n] for b, n in takes.items()]
                or [given["latents"][:0]]
            ),
            "cu_seqlens": cu_seqlens,
            "position_ids": np.concatenate(
                [np.arange(done[b], done[b] + n) for b, n in takes.items()] or [[]]
            ).astype(int),
            "state": ops.LatentState(
                rows, table[list(takes)], [done[b] + n for b, n in takes.items()]
            ),
        }
        out = ops.cca(**step, **on)
        for b, part in zip(takes, np.split(out, cu_seqlens[1:-1]), strict=False):
            found[b].append(part)
            done[b] += len(part)
    for b in range(5):
        np.testing.assert_array_equal(np.concatenate(found[b]), whole[b])


@pytest.mark.parametrize("drafts", [1, 5, 31])
def test_tokens_that_are_taken_back(
    on: Any, precision: Precision, rng: Random, drafts: int
) -> None:
    """A sequence with so many more slots may go on before tokens that were computed."""
    sizes = (4, 2, 8, 3, 2)
    given = make(rng, precision, [200], sizes)
    whole = ops.cca(**given, **on)
    rows = ops.LatentState.empty(6, 3 + drafts, *sizes[:3])
    table, done = np.array([[4, 0, 3, 1]]), 0
    while done < 200:
        right = min(int(rng.integers(1, 4)), 200 - done)
        wrong = int(rng.integers(0, drafts + 1))
        tokens = np.concatenate(
            [given["latents"][done : done + right], precision.round(rng.normal(0, 1, (wrong, 64)))]
        )
        step = given | {
            "latents": tokens,
            "cu_seqlens": [0, len(tokens)],
            "position_ids": np.arange(done, done + len(tokens)),
            "state": ops.LatentState(rows, table, [done + len(tokens)]),
        }
        found = ops.cca(**step, **on)
        np.testing.assert_array_equal(found[:right], whole[done : done + right])
        done += right


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latents": np.zeros((2, 65))}, r"latents have shape \(2, 65\)"),
        ({"cu_seqlens": [0, 3]}, "cu_seqlens"),
        ({"depthwise": (np.zeros((40, 2)), np.zeros(48))}, "depthwise weight has shape"),
        ({"grouped": (np.zeros((48, 8, 9)), np.zeros(48))}, "grouped_width is 9, expected 1 to 8"),
        ({"grouped": (np.zeros((48, 8, 2)), np.zeros(8))}, "grouped bias has shape"),
        ({"first_values": np.zeros(3)}, r"first_values has shape \(3,\)"),
        ({"frequencies": np.zeros(5)}, "dims is 10, expected an even number up to 8"),
        ({"num_heads": 3}, "latents have shape"),
    ],
)
def test_errors(rng: Random, changes: dict[str, Any], message: str) -> None:
    given = make(rng, Precision("float32", 0), [2])
    with pytest.raises(ValueError, match=message):
        ops.cca(**given | changes)


@pytest.mark.parametrize(
    ("rows", "table", "lengths", "message"),
    [
        (np.zeros((2, 2, 56)), [[0]], [2], "float64"),
        (np.zeros((2, 2, 55), np.float32), [[0]], [2], r"expected float32\[pages, slots, 56\]"),
        (np.zeros((2, 1, 56), np.float32), [[0]], [2], "pages.slots is 1, expected 2 to 64"),
        (np.zeros((2, 2, 56), np.float32), [[2]], [2], r"table\[0\] is \[2\]"),
        (np.zeros((2, 2, 56), np.float32), [[0]], [65], r"kv_lens\[0\] is 65"),
        (np.zeros((2, 2, 56), np.float32), [[0], [1]], [2, 2], "expected one for each of 1"),
    ],
)
def test_errors_of_states(rng: Random, rows: Any, table: Any, lengths: Any, message: str) -> None:
    given = make(rng, Precision("float32", 0), [2])
    with pytest.raises(ValueError, match=message):
        ops.cca(**given, state=ops.LatentState(rows, table, lengths))
