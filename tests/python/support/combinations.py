"""Cases in which any two values of two parameters meet, in place of all combinations of all values.

Most errors need one certain value or two at once (Kuhn, Wallace and Gallo, Software fault
interactions and implications for software testing, 2004). Parameters that choose a kernel together
are best one parameter here, so that each kernel meets each value of all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def every_pair(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of indices, one for each parameter, in which every pair of indices of two parameters
    occurs: greedily few rows, and always the same."""
    axes = range(len(sizes))
    left = {
        (a, i, b, j)
        for a, b in combinations(axes, 2)
        for i, j in product(range(sizes[a]), range(sizes[b]))
    }

    def gain(row: Mapping[int, int], axis: int, index: int) -> int:
        """Counts the pairs left that the index makes with those of the row."""
        return sum(
            ((a, i, axis, index) if a < axis else (axis, index, a, i)) in left
            for a, i in row.items()
        )

    rows = []
    while left:
        a, i, b, j = min(left)
        row = {a: i, b: j}
        for axis in sorted(set(axes) - {a, b}, key=lambda axis: -sizes[axis]):
            # The indices in turn, so that equal gains do not all go to the first one.
            turn = [(len(rows) + n) % sizes[axis] for n in range(sizes[axis])]
            row[axis] = max(turn, key=lambda index: gain(row, axis, index))
        left -= {(a, row[a], b, row[b]) for a, b in combinations(axes, 2)}
        rows.append(tuple(row[axis] for axis in axes))
    return sorted(rows)


def pairwise(**axes: Iterable[Any] | Mapping[str, Any]) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` over such rows. A mapping names its values for the ids of cases."""
    values = [list(axis.values() if isinstance(axis, Mapping) else axis) for axis in axes.values()]
    names = [
        list(axis) if isinstance(axis, Mapping) else [str(value) for value in found]
        for axis, found in zip(axes.values(), values, strict=True)
    ]
    cases = [
        pytest.param(
            *(axis[i] for axis, i in zip(values, row, strict=True)),
            id="-".join(axis[i] for axis, i in zip(names, row, strict=True)),
        )
        for row in every_pair([len(axis) for axis in values])
    ]
    return pytest.mark.parametrize(list(axes), cases)
