"""Operators of generation, which are also names of `packhorse.ops`.

What its docstring says of arrays, devices and errors holds for them, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from packhorse.device import is_device_array, shape_of
from packhorse.kv_pages import PAGE_TOKENS
from packhorse.names import Dtype
from packhorse.ops.call import (
    FloatArray,
    OperatorCall,
    as_float32,
    head_columns,
    shared_operators,
)
from packhorse.packing import Int32Array, as_int32, own_int32


def _page_shape(keys: Any, values: Any) -> tuple[int, ...]:
    shape, other = (shape_of(x) if is_device_array(x) else np.shape(x) for x in (keys, values))
    if len(shape) != 4 or shape[2] != PAGE_TOKENS:
        raise ValueError(
            f"keys have shape {shape}, expected (pages, heads of keys, {PAGE_TOKENS}, head_dim)"
        )
    if tuple(other) != tuple(shape):
        raise ValueError(f"values have shape {other}, expected that of keys, {shape}")
    return tuple(shape)


def as_table(table: Any) -> Int32Array:
    if is_device_array(table):
        raise ValueError("table lies on a device, expected host memory")
    array = np.asarray(table)
    if array.ndim != 2:
        raise ValueError(f"table has shape {array.shape}, expected one row for each sequence")
    return own_int32("table", array.reshape(-1)).reshape(array.shape)


def _check_scales(shape: tuple[int, ...], key_scales: Any, value_scales: Any) -> None:
    if (key_scales is None) != (value_scales is None):
        raise ValueError("key_scales and value_scales: one is given, expected both or none")
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        if scales is not None and np.shape(scales) != shape[:3]:
            raise ValueError(
                f"{name} have shape {np.shape(scales)}, expected one for each row of a page, "
                f"{shape[:3]}"
            )


def _check_writeable(keys: Any, values: Any, key_scales: Any, value_scales: Any) -> None:
    for name, array in (
        ("keys", keys),
        ("values", values),
        ("key_scales", key_scales),
        ("value_scales", value_scales),
    ):
        if array is not None and (
            not isinstance(array, np.ndarray)
            or array.dtype != np.float32
            or not array.flags.c_contiguous
            or not array.flags.writeable
        ):
            raise ValueError(f"{name}: expected a writeable C-contiguous float32 array")


def _write(arrays: Iterable[Any], written: Iterable[FloatArray]) -> None:
    given = [array for array in arrays if array is not None]
    for array, rows in zip(given, written, strict=True):
        array[...] = rows.reshape(array.shape)


def _put_pages(
    call: OperatorCall, keys: Any, values: Any, key_scales: Any, value_scales: Any
) -> tuple[Any, ...]:
    """The pages as arguments of the native operators."""
    names = ("keys", "values", "key_scales", "value_scales")
    return tuple(
        None if array is None else call.put_rows(name, array)
        for name, array in zip(names, (keys, values, key_scales, value_scales), strict=True)
    )


def append_kv_cache(
    keys: Any,
    values: Any,
    k: Any,
    v: Any,
    cu_seqlens: Any,
    table: Any,
    kv_lens: Any,
    *,
    key_scales: Any = None,
    value_scales: Any = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> None:
    """Writes keys and values of new tokens into the pages of a cache, in place.

    keys, values  [num_pages, num_kv_heads, PAGE_TOKENS, head_dim]; on the host writeable
                  C-contiguous float32 arrays, which then hold what `dtype` can hold
    k, v          [T, num_kv_heads * head_dim] of the new tokens
    cu_seqlens    [B+1] offsets of each sequence's new tokens
    table         [B, n] pages of each sequence: its token j lies in row j % PAGE_TOKENS of page
                  table[b][j // PAGE_TOKENS]
    kv_lens       [B] tokens of each sequence, the new ones, which are its last, included
    key_scales, value_scales
                  [num_pages, num_kv_heads, PAGE_TOKENS] of pages in float8; writeable C-contiguous
                  float32 arrays on the host, where keys and values lie, too. keys and values then
                  hold numbers of e4m3, and what a row stands for is its numbers times its scale.
                  A token's scales are made here: its largest magnitude in a head / 448

    cu_seqlens, table and kv_lens lie on the host. Raises ValueError naming the argument.
    """
    call = OperatorCall(k, k, device, dtype, threads, stream)
    shape = _page_shape(keys, values)
    _check_scales(shape, key_scales, value_scales)
    pages = keys, values, key_scales, value_scales
    if call.stream is None:
        _check_writeable(*pages)
    written = call.operators.append_kv_cache(
        call.stream,
        _put_pages(call, *pages),
        call.put("k", k),
        call.put("v", v),
        as_int32("cu_seqlens", cu_seqlens),
        as_table(table),
        as_int32("kv_lens", kv_lens),
        shape[1],
    )
    if written is not None:
        _write(pages, written)


def paged_attention(
    q: Any,
    keys: Any,
    values: Any,
    cu_seqlens: Any,
    table: Any,
    kv_lens: Any,
    *,
    num_heads: int,
    scale: float | None = None,
    causal: bool = True,
    window: int = -1,
    soft_cap: float = 0.0,
    alibi_slopes: Any = None,
    distance_bias: Any = None,
    k: Any = None,
    v: Any = None,
    key_scales: Any = None,
    value_scales: Any = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Attention of new tokens over the pages of a cache; returns [T, num_heads * head_dim].
    The pages hold the tokens' own keys and values already, or these are given and appended first.

    q             [T, num_heads * head_dim] of the new tokens
    keys, values, cu_seqlens, table, kv_lens, key_scales, value_scales
                  as in `append_kv_cache`; num_heads is a multiple of the heads of keys. New token i
                  of sequence b stands at position kv_lens[b] - (its new tokens) + i
    scale         of q.k; None: 1 / sqrt(head_dim)
    causal        a token sees keys up to its position; False: all of its sequence
    window        keys seen to the left of a token's position; -1: all
    soft_cap      scaled scores s become soft_cap * tanh(s / soft_cap); 0: they stay
    alibi_slopes  [num_heads]: adds -slope * distance
    distance_bias [num_heads, D]: adds column min(distance, D - 1) to scores, in causal attention
                  without alibi_slopes; only where all arrays lie on the host
    k, v          [T, num_kv_heads * head_dim] of the new tokens, written as by `append_kv_cache`;
    both or
                  none

    A row's bits depend on nothing but its own query, its position and the keys and values up to
    there: not on other sequences or new tokens, nor on where the pages lie. Pages that no new token
    sees are not read. cu_seqlens, table and kv_lens lie on the host. Raises ValueError naming the
    argument.
    """
    call = OperatorCall(q, q, device, dtype, threads, stream)
    shape = _page_shape(keys, values)
    if (k is None) != (v is None):
        raise ValueError("k and v: one is given, expected both or none")
    _check_scales(shape, key_scales, value_scales)
    pages = keys, values, key_scales, value_scales
    if k is not None and call.stream is None:
        _check_writeable(*pages)
    if alibi_slopes is not None and distance_bias is not None:
        raise ValueError("distance_bias beside alibi_slopes, expected one of them")
    if distance_bias is not None and (call.stream is not None or is_device_array(distance_bias)):
        raise ValueError("distance_bias goes with arrays on the host, found some on a device")
    if distance_bias is not None:  # kernels go from far keys to near ones
        distance_bias = np.ascontiguousarray(np.asarray(distance_bias, np.float32)[:, ::-1])
    found = call.operators.paged_attention(
        call.stream,
        call.put("q", q),
        _put_pages(call, *pages),
        as_int32("cu_seqlens", cu_seqlens),
        as_table(table),
        as_int32("kv_lens", kv_lens),
        num_heads,
        shape[1],
        max(shape[3], 1) ** -0.5 if scale is None else scale,
        causal,
        window,
        soft_cap,
        call.put("alibi_slopes", alibi_slopes),
        call.put("distance_bias", distance_bias),
        call.put("k", k),
        call.put("v", v),
    )
    if isinstance(found, tuple):
        found, *written = found
        _write(pages, written)
    return call.result(found)


def rope(
    x: Any,
    cu_seqlens: Any,
    frequencies: Any,
    *,
    num_heads: int,
    position_ids: Any = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
) -> FloatArray:
    """Rotates the heads of x [T, num_heads * head_dim] by their positions (RoPE); host arrays.

    Columns j and j + dims / 2 of each head are rotated by position * frequencies[j], for
    frequencies [dims / 2] with dims at most head_dim. Positions count from each sequence's own
    start unless `position_ids` [T] are given.
    """
    operators = shared_operators(device, dtype, threads)
    x, frequencies = as_float32("x", x), as_float32("frequencies", frequencies)
    if x.ndim != 2 or num_heads <= 0 or x.shape[1] % num_heads:
        raise ValueError(f"x has shape {x.shape}, expected rows of {num_heads} heads")
    columns: Any = slice(None)
    if len(x) > 0:  # or there is nothing to reorder, however many columns are said to be there
        order = head_columns(operators, x.shape[1] // num_heads, frequencies)
        columns = np.arange(x.shape[1]).reshape(num_heads, -1)[:, order].reshape(-1)
    found: FloatArray = operators.rope(
        np.ascontiguousarray(x[:, columns]),
        as_int32("cu_seqlens", cu_seqlens),
        None if position_ids is None else as_int32("position_ids", position_ids),
        num_heads,
        x.shape[1] // num_heads,
        frequencies,
    )
    result = np.empty_like(found)
    result[:, columns] = found
    return result
