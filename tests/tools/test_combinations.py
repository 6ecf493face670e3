"""Pairwise cases: every pair is there, in few cases that are always the same ones."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from combinations import every_pair, pairwise


@pytest.mark.parametrize("sizes", [(2, 3), (10, 14, 2, 3), (3, 3, 3, 3, 3), (1, 4, 2), (5, 5, 5)])
def test_every_pair_occurs(sizes: tuple[int, ...]) -> None:
    rows = every_pair(sizes)
    for a, b in combinations(range(len(sizes)), 2):
        expected = set(product(range(sizes[a]), range(sizes[b])))
        assert {(row[a], row[b]) for row in rows} == expected
    first, second = sorted(sizes)[-2:]
    assert len(rows) <= 2 * first * second
    assert rows == every_pair(sizes)


def test_cases_have_values_and_names() -> None:
    mark = pairwise(kernel={"wide": 64, "narrow": 8}, causal=[False, True])
    names, cases = mark.args
    assert names == ["kernel", "causal"]
    assert {case.id: case.values for case in cases} == {
        "wide-False": (64, False),
        "wide-True": (64, True),
        "narrow-False": (8, False),
        "narrow-True": (8, True),
    }
