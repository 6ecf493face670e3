"""Uses of the outputs for retrieval: sparse vectors, lexical weights and late interaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from packhorse.number_checks import is_int
from packhorse.packing import Int32Array, TokenSequence, as_int32
from packhorse.result import FloatArray

SimilarityFunction = Literal["cosine", "dot", "euclidean", "manhattan"]
_PIECE = 1 << 24  # differences that are held at a time
_SHORTEST = np.float32(1e-12)  # length below which a vector is not scaled up


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


def similarity(
    a: npt.ArrayLike, b: npt.ArrayLike, function: SimilarityFunction = "cosine"
) -> FloatArray:
    """Returns how alike each of the embeddings `a` [N, dims] and each of `b` [M, dims] are, float32
    [N, M]; a vector [dims] counts as one row. Euclidean and Manhattan distances are negated, so
    that a higher number always means more alike, as in sentence-transformers."""
    if function not in get_args(SimilarityFunction):
        known = ", ".join(get_args(SimilarityFunction))
        raise ValueError(f"function is {function!r:.80}, expected one of {known}")
    left, right = _rows("a", a), _rows("b", b)
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"a has {left.shape[1]} dimensions and b {right.shape[1]}")
    if function == "cosine":
        left, right = _length_1(left), _length_1(right)
    if function in ("cosine", "dot"):
        products: FloatArray = left @ right.T
        return products
    found = np.empty((len(left), len(right)), np.float32)
    step = max(1, _PIECE // max(1, right.size))
    for begin in range(0, len(left), step):
        difference = left[begin : begin + step, None, :] - right
        if function == "manhattan":
            found[begin : begin + step] = -np.abs(difference).sum(axis=2)
        else:
            found[begin : begin + step] = -np.sqrt(np.square(difference).sum(axis=2))
    return found


def semantic_search(
    queries: npt.ArrayLike,
    documents: npt.ArrayLike,
    top_k: int = 10,
    function: SimilarityFunction = "cosine",
) -> list[list[dict[str, Any]]]:
    """Returns for each query the `top_k` documents most like it, best first, each {"corpus_id": its
    row, "score": how alike}, as sentence-transformers' function of this name does.

    queries, documents  embeddings [N, dims] and [M, dims]; a vector [dims] counts as one row
    """
    if not is_int(top_k) or top_k < 1:
        raise ValueError(f"top_k is {top_k!r:.80}, expected a whole number over 0")
    left, right = _rows("queries", queries), _rows("documents", documents)
    found: list[list[dict[str, Any]]] = []
    step = max(1, _PIECE // max(1, len(right)))
    for begin in range(0, len(left), step):
        for row in similarity(left[begin : begin + step], right, function):
            best = np.argsort(-row, kind="stable")[:top_k]
            found.append([{"corpus_id": int(i), "score": float(row[i])} for i in best])
    return found


def _rows(name: str, vectors: npt.ArrayLike) -> FloatArray:
    rows = np.asarray(vectors, np.float32)
    if rows.ndim not in (1, 2):
        raise ValueError(f"{name} has shape {list(rows.shape)}, expected [rows, dims] or [dims]")
    return np.atleast_2d(rows)


def _length_1(rows: FloatArray) -> FloatArray:
    scaled: FloatArray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _SHORTEST)
    return scaled
