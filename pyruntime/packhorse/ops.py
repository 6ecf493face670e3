"""Operators on packed arrays: each is one call of the runtime, on any device and dtype.

Inputs are arrays that convert to float32 (ids: int32); the computation runs in `dtype` on `device`,
and results come back as float32. These are for tests and for models of one's own; a `Session` plans
its memory and is faster.

`norm` arguments are `(gamma, beta, eps)`, beta may be None. Every function raises ValueError where
arguments do not fit together, and RuntimeError where the device cannot do the dtype.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse._ops import Operators

FloatArray = npt.NDArray[np.float32]
Norm = tuple[Any, Any, float]


@lru_cache(maxsize=16)
def _operators(device: str, dtype: str, threads: int | None) -> Operators:
    return Operators(device, dtype, threads or 0)


def gemm(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str = "none",
    residual: Any = None,
    norm: Norm | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> FloatArray:
    """norm(residual + activation(x @ weight.T + bias)); every part but the product is optional.

    x [rows, in_features], weight [out_features, in_features], residual [rows, out_features].
    activation: none, gelu (erf), gelu_tanh, relu, silu, tanh, sigmoid.
    """
    return _operators(device, dtype, threads).gemm(x, weight, bias, activation, residual, norm)


def feed_forward(
    x: Any,
    up: tuple[Any, Any],
    down: tuple[Any, Any],
    *,
    activation: str = "gelu",
    residual: Any = None,
    norm: Norm | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> FloatArray:
    """norm(residual + down(activation(up(x)))); `up` and `down` are (weight, bias)."""
    return _operators(device, dtype, threads).feed_forward(x, up, down, activation, residual, norm)


def attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    alibi_slopes: Any = None,
    bucket_table: Any = None,
    max_distance: int = 128,
    bidirectional: bool = True,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> FloatArray:
    """Variable-length attention over packed rows; returns [Tq, num_heads * head_dim].

    q [Tq, num_heads * head_dim], k and v [Tk, num_kv_heads * head_dim]
    cu_seqlens_k  offsets of the keys; None: those of the queries. Query i of a sequence with q_len
                  queries over kv_len keys stands at position kv_len - q_len + i
    scale         of q.k; None: 1 / sqrt(head_dim)
    window        (left, right) keys seen around a query's position; -1: no limit
    alibi_slopes  [num_heads]: adds -slope * distance
    bucket_table  [num_buckets, num_heads]: adds T5's relative term, buckets up to max_distance
    bidirectional half of the buckets are for keys to the right of the query; False: all are for
                  those to the left, and keys to the right count as distance 0
    """
    head_dim = np.shape(q)[-1] // num_heads
    return _operators(device, dtype, threads).attention(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k,
        num_heads,
        num_kv_heads or num_heads,
        head_dim**-0.5 if scale is None else scale,
        causal,
        *window,
        alibi_slopes,
        bucket_table,
        max_distance,
        bidirectional,
    )


def _norm(
    kind: str, x: Any, norm: Norm, residual: Any, device: str, dtype: str, threads: int | None
) -> FloatArray:
    return _operators(device, dtype, threads).norm(x, norm, residual, kind)


def layer_norm(
    x: Any,
    gamma: Any,
    beta: Any = None,
    *,
    eps: float = 1e-12,
    residual: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> FloatArray:
    """LayerNorm(x + residual) over the last axis of x [rows, hidden_size]."""
    return _norm("layer", x, (gamma, beta, eps), residual, device, dtype, threads)


def rms_norm(
    x: Any,
    gamma: Any,
    *,
    eps: float = 1e-6,
    residual: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> FloatArray:
    """RMSNorm(x + residual) over the last axis of x [rows, hidden_size]."""
    return _norm("rms", x, (gamma, None, eps), residual, device, dtype, threads)


def embed(
    ids: Any,
    cu_seqlens: Any,
    word: Any,
    *,
    position: Any = None,
    type: Any = None,
    type_ids: Any = None,
    position_ids: Any = None,
    position_offset: int = 0,
    norm: Norm | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> FloatArray:
    """norm(word[ids] + position[pos + position_offset] + type[type_ids]); tables [n, hidden_size].

    Positions count from each sequence's own start unless `position_ids` [T] are given.
    """
    return _operators(device, dtype, threads).embed(
        ids, cu_seqlens, word, position, type, type_ids, position_ids, position_offset, norm
    )


def pool(
    x: Any,
    cu_seqlens: Any,
    pooling: str = "mean",
    *,
    normalize: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
) -> FloatArray:
    """One row for each sequence of x [T, hidden_size]: cls, mean, max, last or mean_sqrt.

    `normalize` scales rows to length 1. An empty sequence gives zeros.
    """
    return _operators(device, dtype, threads).pool(x, cu_seqlens, pooling, normalize)
