"""Numbers that say how far results are from a reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse.result import FloatArray
from packhorse.text.tasks.embeddings import scale_to_length_1

Float64s = npt.NDArray[np.float64]
_MOST_ROWS = 1000  # texts at most whose pairs are ranked: half a million pairs


def cosines(found: FloatArray, expected: FloatArray) -> Float64s:
    """Cosines float64 [N] of each row of `found` [N, columns] with that row of `expected`."""
    ours, theirs = scale_to_length_1(found), scale_to_length_1(expected)
    products: Float64s = (ours.astype(np.float64) * theirs).sum(axis=1)
    return products


def nearest(rows: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """[N, count]: for each row the numbers of the most similar other rows by cosine, most similar
    first. rows: [N, columns], of length 1."""
    result = np.empty((len(rows), count), np.intp)
    for i, row in enumerate(rows):
        scores = rows @ row
        scores[i] = -np.inf
        result[i] = np.argsort(-scores, kind="stable")[:count]
    return result


def neighbour_agreement(found: FloatArray, expected: FloatArray, count: int) -> tuple[float, float]:
    """(share of rows whose nearest other row is the same, share of the `count` nearest ones)."""
    ours = nearest(scale_to_length_1(found), count)
    theirs = nearest(scale_to_length_1(expected), count)
    common = [len(np.intersect1d(a, b)) for a, b in zip(ours, theirs, strict=True)]
    return float((ours[:, 0] == theirs[:, 0]).mean()), float(np.mean(common) / count)


def pair_scores(rows: FloatArray) -> FloatArray:
    """The cosines of all pairs among the first 1,000 rows."""
    some = scale_to_length_1(rows[:_MOST_ROWS])
    scores: FloatArray = (some @ some.T)[np.triu_indices(len(some), 1)]
    return scores


def _ranks(values: npt.NDArray[Any]) -> Float64s:
    """Ranks from 0 on; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Float64s = last - (counts + 1) / 2
    return means[place.ravel()]


def rank_correlation(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Spearman's, of two vectors; of vectors without an order (one value), 1 if both are so."""
    ours, theirs = (ranks - ranks.mean() for ranks in (_ranks(found), _ranks(expected)))
    size = float(np.sqrt((ours @ ours) * (theirs @ theirs)))
    return float(ours @ theirs) / size if size else float(not ours.any() and not theirs.any())
