"""Uses of the outputs for retrieval: sparse vectors, lexical weights and late interaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from packhorse.packing import Int32Array, TokenSequence, as_int32
from packhorse.result import FloatArray


def sparse_entries(sparse: FloatArray) -> list[tuple[Int32Array, FloatArray]]:
    """Returns (token ids, weights) of the numbers above zero in each row of `sparse` [B,
    vocab_size], with ids in ascending order."""
    rows = []
    for row in sparse:
        ids = np.flatnonzero(row > 0).astype(np.int32)
        rows.append((ids, row[ids]))
    return rows


def lexical_weights(
    ids: TokenSequence, token_weights: Any, special: Collection[int] = ()
) -> dict[int, float]:
    """Returns {token id: its largest weight} of one sequence, for weights above zero.

    token_weights  [n] or [n, 1], the weights of the n ids
    special        ids that are ignored: [CLS], [SEP], padding and unknown ones

    These are the lexical weights of BGE-M3 (Chen et al., arXiv 2402.03216).
    """
    array = as_int32("ids", ids)
    weights = np.asarray(token_weights, np.float32)
    if weights.size != array.size:
        raise ValueError(f"token_weights has {weights.size} numbers, ids has {array.size}")
    found: dict[int, float] = {}
    for token, weight in zip(array.tolist(), weights.ravel().tolist(), strict=True):
        if weight > found.get(token, 0.0) and token not in special:
            found[token] = weight
    return found


def late_interaction(query: FloatArray, document: FloatArray) -> float:
    """Returns ColBERT's MaxSim (Khattab and Zaharia, arXiv 2004.12832): for each of the query's
    vectors [n, size], the largest product with one of the document's vectors [m, size], summed.
    Returns zero if either is empty."""
    if query.ndim != 2 or document.ndim != 2 or query.shape[1] != document.shape[1]:
        raise ValueError(
            f"query is {query.shape} and document {document.shape}, expected [n, size] and "
            "[m, size]"
        )
    if not len(query) or not len(document):
        return 0.0
    return float((query @ document.T).max(axis=1).sum())
