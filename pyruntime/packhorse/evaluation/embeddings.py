"""Comparison of models that give vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packhorse.evaluation import statistics
from packhorse.evaluation.items import Entry, plain_texts
from packhorse.evaluation.measures import Measure, Spread
from packhorse.evaluation.task import Report, Task
from packhorse.text import TextModel

_NEAREST = 10


class Embed(Task):
    """Embeddings: their cosines to those of float32, and whether neighbours stay the same."""

    name = "embed"
    least = 2

    def items(self, entries: Sequence[Entry]) -> Sequence[str]:
        return plain_texts(entries)

    def run(self, model: TextModel, items: Sequence[str], report: Report) -> Any:
        return model.embed(items, progress=report)

    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        cosines = statistics.cosines(found, expected)
        count = min(_NEAREST, len(found) - 1)
        nearest, same = statistics.neighbour_agreement(found, expected, count)
        ours, theirs = statistics.pair_scores(found), statistics.pair_scores(expected)
        ranks = statistics.rank_correlation(ours, theirs)
        return [
            *cosine_measures(cosines),
            Measure("nearest_same", "nearest neighbour the same", nearest),
            Measure(
                f"neighbours_at_{_NEAREST}",
                f"of the {count} nearest the same",
                same,
                close=0.94,
                usable=0.85,
            ),
            Measure("rank_correlation", "rank correlation of pairs", ranks, "higher", 0.99, 0.97),
        ], Spread("cosine to float32", cosines)


def cosine_measures(cosines: statistics.Float64s) -> list[Measure]:
    one_percent, median = np.percentile(cosines, [1, 50])
    return [
        Measure("cosine_min", "cosine, smallest", float(cosines.min()), "higher", 0.99, 0.95),
        Measure("cosine_1_percent", "cosine, 1 %", float(one_percent)),
        Measure("cosine_median", "cosine, median", float(median)),
    ]


class EmbedSparse(Embed):
    """Sparse vectors: their cosines to those of float32."""

    name = "embed_sparse"
    least = 1

    def run(self, model: TextModel, items: Sequence[str], report: Report) -> Any:
        return model.embed_sparse(items, progress=report)

    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        cosines = np.array([_sparse_cosine(*pair) for pair in zip(found, expected, strict=True)])
        return cosine_measures(cosines), Spread("cosine to float32", cosines)


def _sparse_cosine(found: Any, expected: Any) -> float:
    ids, ours, theirs = np.intersect1d(found[0], expected[0], return_indices=True)
    weights, others = found[1].astype(np.float64), expected[1].astype(np.float64)
    size = float(np.sqrt((weights @ weights) * (others @ others)))
    if not ids.size:
        return float(len(weights) == len(others) == 0)
    return float(weights[ours] @ others[theirs]) / size


class EmbedTokens(Embed):
    """Vectors of tokens: their cosines to those of float32."""

    name = "embed_tokens"
    least = 1

    def run(self, model: TextModel, items: Sequence[str], report: Report) -> Any:
        return np.concatenate(model.embed_tokens(items, progress=report))

    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        cosines = statistics.cosines(found, expected)
        return cosine_measures(cosines), Spread("cosine to float32, of tokens", cosines)
