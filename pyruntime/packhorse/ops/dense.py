"""Dense layers: products with bias, activation, residual and norm, feed-forward blocks, and the
heads of queries, keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from packhorse.names import Activation, Dtype
from packhorse.ops.call import (
    FloatArray,
    Norm,
    OperatorCall,
    as_float32,
    head_columns,
    shared_operators,
)
from packhorse.packing import as_int32

_GATE_BLOCK = 16  # kGateBlock of runtime/ops/activation.h


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
