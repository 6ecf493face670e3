"""Attention over packed sequences; paged attention is beside the cache (kv_cache.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from packhorse.device import is_device_array, shape_of
from packhorse.names import AttentionAlgorithm, Dtype
from packhorse.ops.call import OperatorCall


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
    position_keys: Any = None,
    position_queries: Any = None,
    buckets: int = 0,
    algorithm: AttentionAlgorithm = "auto",
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Attention over packed sequences of different lengths; returns [Tq, num_heads * head_dim].

    q [Tq, num_heads * head_dim], k and v [Tk, num_kv_heads * head_dim]
    cu_seqlens_k  offsets of the keys; None: those of the queries. Query i of a sequence with q_len
                  queries and kv_len keys has the position kv_len - q_len + i
    scale         factor of q . k; None: 1 / sqrt(head_dim)
    window        (left, right) number of keys seen on each side of a query; -1: no limit
    alibi_slopes  [num_heads]: adds -slope * distance
    bucket_table  [num_buckets, num_heads]: adds T5's relative term, with buckets up to max_distance
    bidirectional True: half of the buckets are for keys to the right of the query. False: all are
                  for keys to the left, and keys to the right count as distance 0
    position_keys, position_queries
                  [slots, num_heads * head_dim], either may be None: adds DeBERTa's terms, query
                  times position key and key times position query, scaled as q . k is. There is
                  one slot for each distance up to max_distance, or there are `buckets` slots for
                  each side, the second half of which grow with the logarithm of the distance;
                  `slots` is the number for both sides
    algorithm     on CUDA devices, one of
                  "hopper"   wgmma and TMA with an online softmax, compute capability 9.0
                  "online"   online softmax, compute capability 8.0 and up
                  "short"    ByteTransformer's fused attention (arXiv 2210.03052): whole score rows
                             stay on chip for sequences of up to 384 keys; longer ones as "online"
                  "grouped"  ByteTransformer's attention by two grouped GEMMs for sequences of up
                             to 1024 keys; longer ones as "online"
                  "bytetransformer"  "short" up to 384 keys, "grouped" up to 1024, then "online"
                  "auto"     "hopper" if the device and the term allow it, otherwise "online"
                  Their results differ by rounding. An algorithm that cannot compute what is asked
                  for raises ValueError: "short" and "grouped" take heads of up to 128 columns and
                  no disentangled term

    Raises ValueError naming the argument, what was found and what was expected.
    """
    call = OperatorCall(q, q, device, dtype, threads, stream, algorithm)
    shape = shape_of(q) if is_device_array(q) else np.shape(q)
    if num_heads <= 0 or len(shape) != 2 or shape[1] < num_heads:
        raise ValueError(f"q has shape {shape}, expected rows of {num_heads} heads")
    head_dim = shape[1] // num_heads
    offsets_q = call.put_ints("cu_seqlens_q", cu_seqlens_q)
    offsets_k = offsets_q if cu_seqlens_k is None else call.put_ints("cu_seqlens_k", cu_seqlens_k)
    return call.result(
        call.operators.attention(
            call.stream,
            call.put("q", q),
            call.put("k", k),
            call.put("v", v),
            offsets_q,
            offsets_k,
            num_heads,
            num_kv_heads or num_heads,
            head_dim**-0.5 if scale is None else scale,
            causal,
            *window,
            call.put("alibi_slopes", alibi_slopes),
            call.put("bucket_table", bucket_table),
            max_distance,
            bidirectional,
            call.put("position_keys", position_keys),
            call.put("position_queries", position_queries),
            buckets,
        )
    )
