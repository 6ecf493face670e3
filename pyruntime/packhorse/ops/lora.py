"""The operator of adapters, which is also a name of `packhorse.ops`."""

from __future__ import annotations

from typing import Any

import numpy as np

from packhorse.names import Dtype
from packhorse.ops.call import FloatArray, as_float32, shared_operators
from packhorse.packing import Int32Array, own_int32

_PART_COLUMNS = 8  # kPartColumns of runtime/ops/args/lora.h


def add_lora(
    out: Any,
    x: Any,
    a: Any,
    b: Any,
    slots: Any,
    *,
    ranks: Any = None,
    parts: Any = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    threads: int | None = None,
) -> FloatArray:
    """out [rows, out_features] + what low-rank adapters add to a dense layer of x [rows,
    in_features]: of each row, b[slot].T @ (a[slot] @ x) of the adapter slots[row]; of a row whose
    slot is -1, nothing.

    a [slots, rank, in_features], or [slots, parts, rank, in_features] for a layer of several parts:
    columns 8 i to 8 i + 7 of `out` are then of the part parts[i]. On the CPU, 16 columns are of one
    part. b [slots, rank, out_features]. ranks [slots]: only so many ranks of each slot count.

    Arrays lie on the host. On CUDA devices, in_features and out_features must be multiples of 8.
    Raises ValueError where arguments do not fit together or are out of range.
    """
    first, second = as_float32("a", a), as_float32("b", b)
    if first.ndim == 3:
        first = first[:, None]
    if first.ndim != 4 or second.ndim != 3 or first.shape[2] != second.shape[1]:
        raise ValueError(
            f"a has shape {np.shape(a)}, b {np.shape(b)}: expected [slots, parts, rank, "
            "in_features] and [slots, rank, out_features]"
        )
    num_slots, num_parts, rank, columns = first.shape
    counted = own_int32("ranks", [rank] * num_slots if ranks is None else ranks)
    used = own_int32("slots", slots)
    rows = as_float32("x", x)
    _check("slots", used, len(rows), -1, num_slots - 1)
    _check("ranks", counted, num_slots, 0, rank)
    of_columns = None
    if parts is not None:
        of_columns = own_int32("parts", parts)
        _check("parts", of_columns, second.shape[2] // _PART_COLUMNS, 0, num_parts - 1)
    found: FloatArray = shared_operators(device, dtype, threads).add_lora(
        as_float32("out", out),
        rows,
        first.reshape(-1, columns),
        second.reshape(-1, second.shape[2]),
        used,
        counted,
        of_columns,
        num_parts,
    )
    return found


def _check(name: str, values: Int32Array, size: int, low: int, high: int) -> None:
    if values.shape != (size,):
        raise ValueError(f"{name} has shape {values.shape}, expected ({size},)")
    wrong = (values < low) | (values > high)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(f"{name}[{i}] is {values[i]}, expected {low} to {high}")
