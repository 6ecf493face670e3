"""The operator of compressed convolutional attention, which is also a name of `packhorse.ops`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from packhorse.kv_pages import PAGE_TOKENS
from packhorse.names import Dtype
from packhorse.ops.call import FloatArray, as_float32, head_columns, shared_operators
from packhorse.ops.kv_cache import as_table
from packhorse.packing import Int32Array, as_int32, own_int32

_MULTIPLE = 16  # columns of a head in memory are a multiple of this


@dataclass
class LatentState:
    """State that `cca` keeps of the tokens of each sequence, for the tokens after them.

    rows float32 [num_pages, slots, state columns]: see `empty`. table int [B, pages], kv_lens int
    [B], as for `paged_attention`.
    """

    rows: FloatArray
    table: Any
    kv_lens: Any

    @staticmethod
    def empty(
        num_pages: int, slots: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> FloatArray:
        """Rows of zeros. A page keeps its last `slots` tokens, of which the operator needs both
        widths together less 2, and at least 1."""
        columns = (num_heads + num_kv_heads) * head_dim + num_kv_heads * head_dim // 2
        return np.zeros((num_pages, slots, columns), np.float32)


def cca(
    latents: Any,
    cu_seqlens: Any,
    depthwise: tuple[Any, Any],
    grouped: tuple[Any, Any],
    temperature: Any,
    *,
    num_heads: int,
    frequencies: Any = None,
    position_ids: Any = None,
    first_values: Any = None,
    state: LatentState | None = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
) -> FloatArray:
    """Heads of compressed convolutional attention (CCA and CCGQA, arXiv 2510.04476): queries, keys
    and values [T, (num_heads + 2 num_kv_heads) * head_dim] of latents of the same shape, which are
    the down-projections of the hidden states, side by side.

    depthwise: weight [C, width] and bias [C] of the causal convolution of each of the C =
    (num_heads + num_kv_heads) * head_dim columns of queries and keys. grouped: weight
    [C, head_dim, width] and bias [C] of the causal convolution of each head that follows it, with
    taps from the oldest token to the token itself, as PyTorch has them. Widths are 1 to 8.
    temperature [num_kv_heads] multiplies the heads of keys. The second half of the columns of
    values is that of the token before; before a sequence it is first_values [num_kv_heads *
    head_dim], or zeros. frequencies [dims / 2] rotate queries and keys, as in `rope`.

    state: sequences go on where they were left, and are left there; its rows are written.

    Arrays lie on the host. Raises ValueError where arguments do not fit together; on CUDA devices
    heads have at most 256 columns.
    """
    x = as_float32("latents", latents)
    weight, bias = (as_float32("depthwise", part) for part in depthwise)
    mixed, mixed_bias = (as_float32("grouped", part) for part in grouped)
    scales = as_float32("temperature", temperature)
    num_kv_heads = len(scales) if scales.ndim == 1 else 0
    heads = num_heads + 2 * num_kv_heads
    if x.ndim != 2 or num_kv_heads < 1 or num_heads < 1 or x.shape[1] % heads:
        raise ValueError(
            f"latents have shape {x.shape}, temperature {scales.shape}: expected [T, (num_heads + "
            "2 num_kv_heads) * head_dim] and [num_kv_heads]"
        )
    head_dim = x.shape[1] // heads
    values = num_kv_heads * head_dim
    columns = (num_heads + num_kv_heads) * head_dim
    if values % 2:
        raise ValueError(f"values have {values} columns, expected an even number")
    for name, array, expected in (
        ("depthwise weight", weight, (columns, *weight.shape[1:2])),
        ("depthwise bias", bias, (columns,)),
        ("grouped weight", mixed, (columns, head_dim, *mixed.shape[2:3])),
        ("grouped bias", mixed_bias, (columns,)),
    ):
        if array.shape != expected:
            raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
        if array.size == 0:
            raise ValueError(f"{name} has shape {array.shape}, expected no empty dimension")
    first = as_float32("first_values", np.zeros(values) if first_values is None else first_values)
    if first.shape != (values,):
        raise ValueError(f"first_values has shape {first.shape}, expected ({values},)")

    offsets = own_int32("cu_seqlens", cu_seqlens)
    checked = None
    if state is not None:
        checked = _check_state(state, len(offsets) - 1, columns + values // 2)

    # Heads are filled up with zeros to what they take in memory, and those of queries and keys have
    # their columns in the device's order.
    operators = shared_operators(device, dtype, threads)
    stored = -(-head_dim // _MULTIPLE) * _MULTIPLE
    order = np.argsort(head_columns(operators, head_dim, frequencies))
    begins = np.arange(heads)[:, None] * stored
    mixed_heads = num_heads + num_kv_heads
    place = np.concatenate([begins[:mixed_heads] + order, begins[mixed_heads:] + range(head_dim)])
    place = place.reshape(-1)
    value_place = place[columns:] - mixed_heads * stored

    def spread(array: FloatArray, at: Any = place) -> FloatArray:
        """Spreads the columns of an array, those of so many heads, as they lie in memory."""
        count = array.shape[-1]
        result = np.zeros((*array.shape[:-1], count // head_dim * stored), np.float32)
        result[..., at[:count]] = array
        return result

    taps = mixed.reshape(-1, head_dim, head_dim, mixed.shape[2])
    kernel = np.zeros((len(taps), mixed.shape[2], stored, stored), np.float32)
    kernel[:, :, order[:, None], order] = taps.transpose(0, 3, 2, 1)
    pages = None
    delayed = int(value_place[values // 2])
    kept = np.concatenate([place[:columns], place[columns + values // 2 :]])
    kept[columns:] -= delayed
    if state is not None and checked is not None:
        slots = state.rows.shape[1]
        width = (num_heads + 2 * num_kv_heads) * stored - delayed
        rows = np.zeros((len(state.rows) * slots, width), np.float32)
        rows[:, kept] = state.rows.reshape(-1, len(kept))
        pages = (rows, slots, *checked)
    found = operators.cca(
        spread(x),
        offsets,
        None if position_ids is None else as_int32("position_ids", position_ids),
        [
            np.ascontiguousarray(spread(weight.T)),
            spread(bias),
            kernel.reshape(-1, stored),
            spread(mixed_bias),
            scales,
            spread(first, value_place),
        ],
        [num_heads, num_kv_heads, stored, head_dim, weight.shape[1], mixed.shape[2], delayed],
        None if frequencies is None else as_float32("frequencies", frequencies),
        pages,
    )
    if state is not None:
        found, rows = found
        state.rows[:] = rows[:, kept].reshape(state.rows.shape)
    result: FloatArray = found[:, place]
    return result


def _check_state(
    state: LatentState, num_sequences: int, columns: int
) -> tuple[Int32Array, Int32Array]:
    """Returns the table and the lengths that were checked."""
    rows, table = state.rows, as_table(state.table)
    lengths = own_int32("kv_lens", state.kv_lens)
    if rows.ndim != 3 or rows.shape[2] != columns or rows.dtype != np.float32:
        raise ValueError(
            f"rows of the state are {rows.dtype}{list(rows.shape)}, expected "
            f"float32[pages, slots, {columns}]"
        )
    if len(table) != num_sequences or lengths.shape != (num_sequences,):
        raise ValueError(
            f"table has {len(table)} rows, kv_lens shape {lengths.shape}, expected one for each of "
            f"{num_sequences} sequences"
        )
    for b, length in enumerate(lengths):
        used = table[b, : -(-int(length) // PAGE_TOKENS)]
        if len(used) * PAGE_TOKENS < length or (used < 0).any() or (used >= len(rows)).any():
            raise ValueError(
                f"kv_lens[{b}] is {length}, table[{b}] is {table[b].tolist()}: expected a page, 0 "
                f"to {len(rows) - 1}, for every {PAGE_TOKENS} tokens"
            )
    return table, lengths
