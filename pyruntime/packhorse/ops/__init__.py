"""Operators on packed arrays. Each is one call of the runtime, on any device and dtype.

Host inputs are arrays of numbers, converted to float32; ids and offsets are integers of any kind
within int32. The computation runs in `dtype` on `device`, and results come back as float32.

If the first argument lies on a CUDA device, all arguments must (offsets may lie on the host, except
those of `embed`). They may be any arrays with `__dlpack__` or `__cuda_array_interface__`. All
matrices have one dtype, float16 or bfloat16, in which the computation runs; vectors are float32 and
ids int32. The result is a `DeviceArray` with memory of its own. `stream` is as in
`EncoderSession.run`, but an operator always waits until it is done.

The operators are for tests and for models of one's own; a `Session` plans its memory and is faster.

`norm` arguments are `(gamma, beta, eps)`, where beta may be None. Every function raises ValueError
if its arguments do not fit together, and RuntimeError if the device does not support the dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from packhorse.device import is_device_array, shape_of
from packhorse.names import Activation, AttentionAlgorithm, Dtype
from packhorse.ops.call import (
    FloatArray,
    Norm,
    OperatorCall,
    as_float32,
    head_columns,
    shared_operators,
)
from packhorse.ops.cca import LatentState, cca
from packhorse.ops.groupwise import gemm_groupwise
from packhorse.ops.kv_cache import PAGE_TOKENS, append_kv_cache, paged_attention, rope
from packhorse.ops.lora import add_lora
from packhorse.ops.rowwise import embed, layer_norm, pool, rms_norm, sparse_pool
from packhorse.ops.sampling import Sampled, sample
from packhorse.packing import as_int32

__all__ = [
    "PAGE_TOKENS",
    "LatentState",
    "Sampled",
    "add_lora",
    "append_kv_cache",
    "attention",
    "cca",
    "embed",
    "feed_forward",
    "gemm",
    "gemm_groupwise",
    "layer_norm",
    "paged_attention",
    "pool",
    "qkv_rope",
    "rms_norm",
    "rope",
    "sample",
    "sparse_pool",
]


def gemm(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: Activation = "none",
    residual: Any = None,
    norm: Norm | None = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
    skinny: bool = False,
) -> Any:
    """Computes norm(residual + activation(x @ weight.T + bias)); only the product is not optional.

    x [rows, in_features], weight [out_features, in_features], residual [rows, out_features].
    activation: none, gelu (erf), gelu_tanh, relu, silu, tanh, sigmoid.
    skinny: whether most products of this weight have few rows, as in a model that generates.
    Results may then differ in their last bits from those without; a row has the same bits beside
    any number of others either way.
    """
    call = OperatorCall(x, x, device, dtype, threads, stream, skinny=skinny)
    return call.result(
        call.operators.gemm(
            call.stream,
            call.put("x", x),
            call.put("weight", weight),
            call.put("bias", bias),
            activation,
            call.put("residual", residual),
            call.put_norm(norm),
        )
    )


def feed_forward(
    x: Any,
    up: tuple[Any, Any],
    down: tuple[Any, Any],
    *,
    gate: tuple[Any, Any] | None = None,
    activation: Activation = "gelu",
    residual: Any = None,
    norm: Norm | None = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
    skinny: bool = False,
) -> Any:
    """Computes norm(residual + down(activation(up(x)))); `up` and `down` are (weight, bias).

    With `gate`, which is (weight, bias) as well, it computes down(activation(gate(x)) * up(x))
    instead. `gate` is only for host arrays. skinny: as for `gemm`.
    """
    call = OperatorCall(x, x, device, dtype, threads, stream, skinny=skinny)
    if gate is not None:
        if call.stream is not None:
            raise ValueError("gate is for arrays on the host, the first argument lies on a device")
        up, down = _gated(gate, up, down)
    return call.result(
        call.operators.feed_forward(
            call.stream,
            call.put("x", x),
            call.put_pair("up", up),
            call.put_pair("down", down),
            activation,
            gate is not None,
            call.put("residual", residual),
            call.put_norm(norm),
        )
    )


_GATE_BLOCK = 16  # kGateBlock of runtime/ops/activation.h


def _gated(
    gate: tuple[Any, Any], up: tuple[Any, Any], down: tuple[Any, Any]
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Arranges up and down as FeedForwardArgs wants them: blocks of rows of gate and up alternate,
    padded by zeros."""
    if np.shape(gate[0]) != np.shape(up[0]) or np.ndim(up[0]) != 2:
        raise ValueError(
            f"gate has shape {np.shape(gate[0])}, expected that of up, {np.shape(up[0])}"
        )
    rows = len(up[0])
    more = -rows % _GATE_BLOCK

    def in_turn(parts: list[Any]) -> Any:
        blocks = [
            np.pad(part, [(0, more), *[(0, 0)] * (np.ndim(part) - 1)]).reshape(
                -1, _GATE_BLOCK, *np.shape(part)[1:]
            )
            for part in parts
        ]
        return np.stack(blocks, 1).reshape(2 * (rows + more), *np.shape(parts[0])[1:])

    biases = [np.zeros(rows, np.float32) if b is None else np.asarray(b) for b in (gate[1], up[1])]
    for name, bias in zip(("gate", "up"), biases, strict=True):
        if bias.shape != (rows,):
            raise ValueError(f"bias of {name} has shape {bias.shape}, expected a vector of {rows}")
    if np.ndim(down[0]) != 2 or np.shape(down[0])[1] != rows:
        raise ValueError(f"down has shape {np.shape(down[0])}, expected {rows} columns")
    both = None if gate[1] is None and up[1] is None else in_turn(biases)
    weights = [np.asarray(gate[0]), np.asarray(up[0])]
    return (in_turn(weights), both), (np.pad(down[0], [(0, 0), (0, more)]), down[1])


def qkv_rope(
    x: Any,
    weight: Any,
    bias: Any,
    cu_seqlens: Any,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    frequencies: Any = None,
    position_ids: Any = None,
    query_norm: tuple[Any, float] | None = None,
    key_norm: tuple[Any, float] | None = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    skinny: bool = False,
) -> FloatArray:
    """Computes x @ weight.T + bias, the heads of queries, keys and values, ready for attention.

    All arrays lie on the host. weight is [(num_heads + 2 num_kv_heads) * head_dim, in_features],
    the result [T, (num_heads + 2 num_kv_heads) * head_dim]. Queries and keys are then changed by
    query_norm   (gamma [head_dim], eps): RMS norm of each head of queries; key_norm is the same for
                 keys
    frequencies  [dims / 2], dims even and at most head_dim: columns j and j + dims / 2 of each head
                 are rotated by position * frequencies[j] (RoPE)
    Positions count from each sequence's own start unless `position_ids` [T] are given. skinny: as
    for `gemm`.
    """
    operators = shared_operators(device, dtype, threads, skinny=skinny)
    x, weight = as_float32("x", x), as_float32("weight", weight)
    bias = None if bias is None else as_float32("bias", bias)
    if frequencies is not None:
        frequencies = as_float32("frequencies", frequencies)
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if weight.ndim != 2 or weight.size == 0:
        raise ValueError(f"weight has shape {weight.shape}, expected two dimensions, none empty")
    rows, heads = len(weight), num_heads + 2 * kv_heads
    if num_heads <= 0 or kv_heads <= 0 or rows < heads or rows % heads:
        raise ValueError(f"weight has {rows} rows, expected a multiple of {heads} heads")
    if bias is not None and bias.shape != (rows,):
        raise ValueError(f"bias has shape {bias.shape}, expected a vector of {rows}")
    head_dim = rows // heads
    order = head_columns(operators, head_dim, frequencies)
    rotated = [h * head_dim + order for h in range(num_heads + kv_heads)]
    columns = np.concatenate([*rotated, np.arange(len(rotated) * head_dim, rows)])

    def norm(given: tuple[Any, float] | None) -> Norm | None:
        if given is None:
            return None
        gamma = as_float32("gamma", given[0])
        if gamma.shape != (head_dim,):
            raise ValueError(
                f"gamma has shape {gamma.shape}, expected a vector of {head_dim}, the columns "
                "of a head"
            )
        return gamma[order], None, given[1]

    found: FloatArray = operators.qkv_rope(
        x,
        weight[columns],
        None if bias is None else bias[columns],
        as_int32("cu_seqlens", cu_seqlens),
        None if position_ids is None else as_int32("position_ids", position_ids),
        num_heads,
        kv_heads,
        head_dim,
        frequencies,
        norm(query_norm),
        norm(key_norm),
    )
    result = np.empty_like(found)
    result[:, columns] = found
    return result


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
