"""Operators on the rows of hidden states, which are also names of `packhorse.ops`.

What its docstring says of arrays, devices, norms and errors holds for them, too.
"""

from __future__ import annotations

from typing import Any, Literal

from packhorse.names import Dtype, Pooling
from packhorse.ops.call import Norm, OperatorCall


def _norm(
    kind: Literal["layer", "rms"],
    x: Any,
    norm: Norm,
    residual: Any,
    device: str,
    dtype: Dtype,
    threads: int | None,
    stream: Any,
) -> Any:
    call = OperatorCall(x, x, device, dtype, threads, stream)
    return call.result(
        call.operators.norm(
            call.stream, call.put("x", x), call.put_norm(norm), call.put("residual", residual), kind
        )
    )


def layer_norm(
    x: Any,
    gamma: Any,
    beta: Any = None,
    *,
    eps: float = 1e-12,
    residual: Any = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Computes LayerNorm(x + residual) over the last axis of x [rows, hidden_size]."""
    return _norm("layer", x, (gamma, beta, eps), residual, device, dtype, threads, stream)


def rms_norm(
    x: Any,
    gamma: Any,
    *,
    eps: float = 1e-6,
    residual: Any = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Computes RMSNorm(x + residual) over the last axis of x [rows, hidden_size]."""
    return _norm("rms", x, (gamma, None, eps), residual, device, dtype, threads, stream)


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
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Looks up norm(word[ids] + position[pos + position_offset] + type[type_ids]).

    Tables are [n, hidden_size]. Positions count from the start of each sequence unless
    `position_ids` [T] are given.
    """
    call = OperatorCall(ids, word, device, dtype, threads, stream)
    return call.result(
        call.operators.embed(
            call.stream,
            call.put_ints("ids", ids),
            call.put_ints("cu_seqlens", cu_seqlens),
            call.put("word", word),
            call.put("position", position),
            call.put("type", type),
            call.put_ints("type_ids", type_ids),
            call.put_ints("position_ids", position_ids),
            position_offset,
            call.put_norm(norm),
        )
    )


def log_softmax(
    x: Any,
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Computes x - log(sum(exp(x))) over the last axis of x [rows, columns]: log-probabilities of
    logits, in float32 on every device."""
    call = OperatorCall(x, x, device, dtype, threads, stream)
    return call.result(call.operators.log_softmax(call.stream, call.put("x", x)))


def pool(
    x: Any,
    cu_seqlens: Any,
    pooling: Pooling = "mean",
    *,
    normalize: bool = False,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Pools the rows of each sequence of x [T, hidden_size] to one row.

    pooling: cls, mean, max, last, mean_sqrt (the sum divided by the square root of the length) or
    weighted_mean (token i, counted from 0, has weight i + 1).

    `normalize` scales rows to length 1. An empty sequence gives zeros.
    """
    call = OperatorCall(x, x, device, dtype, threads, stream)
    return call.result(
        call.operators.pool(
            call.stream,
            call.put("x", x),
            call.put_ints("cu_seqlens", cu_seqlens),
            pooling,
            normalize,
        )
    )


def sparse_pool(
    x: Any,
    weight: Any,
    cu_seqlens: Any,
    *,
    bias: Any = None,
    sum: bool = False,
    twice: bool = False,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Computes the maximum of log(1 + max(0, x weight^T + bias)) over each sequence, by which
    SPLADE weighs a vocabulary: [B, N] from x [T, K] and weight [N, K]. No [T, N] array is stored.

    `sum` adds instead of taking the maximum; `twice` applies log(1 + x) to each value again. An
    empty sequence gives zeros.
    """
    call = OperatorCall(x, x, device, dtype, threads, stream)
    return call.result(
        call.operators.sparse_pool(
            call.stream,
            call.put("x", x),
            call.put("weight", weight),
            call.put("bias", bias),
            call.put_ints("cu_seqlens", cu_seqlens),
            sum,
            twice,
        )
    )
