"""Converts the arguments of a run to the form that the runtime takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from packhorse._native.session import NativeSession
from packhorse.device import DeviceView, ForeignArray, import_array, is_array
from packhorse.names import OutputName
from packhorse.packing import PackedTokens, TokenSequence, pack
from packhorse.patches import DTYPES, PackedPatches
from packhorse.result import FloatArray

# A tuple of two NumPy arrays means (ids, cu_seqlens), although type checkers see two sequences.
HostBatch = PackedTokens | Sequence[TokenSequence]
Batch = HostBatch | PackedTokens[Any] | tuple[ForeignArray, ForeignArray]
Outputs = Sequence[OutputName] | OutputName


def as_batch(batch: Batch) -> PackedTokens[Any]:
    if isinstance(batch, PackedTokens):
        return batch
    if isinstance(batch, tuple) and len(batch) == 2:
        arrays = [is_array(part) for part in batch]
        if all(arrays):
            return PackedTokens(*batch)
        if any(arrays):
            found = " and ".join(type(part).__name__ for part in batch)
            raise ValueError(
                f"the batch is a tuple of {found}, which may mean two things: (ids, cu_seqlens) is "
                "a tuple of two arrays, two sequences are a list"
            )
    sequences: Any = batch
    return pack(sequences)


def import_batch(
    native: NativeSession, packed: PackedTokens[Any], stream: int
) -> tuple[tuple[int, ...], list[Any]]:
    """The addresses and sizes of a batch on the device, and the objects that keep its arrays
    alive."""
    if native.device_index < 0:
        raise ValueError("the batch lies on a device, but this session runs on the CPU")
    addresses, owners = [], []
    for name in ("ids", "cu_seqlens", "type_ids", "position_ids"):
        array = getattr(packed, name)
        if array is None:
            addresses.append(0)
            continue
        view = import_array(
            name, array, native.device_index, stream or native.stream, native.wait_for
        )
        if view.dtype != "int32":
            raise ValueError(f"{name} is {view.dtype}, expected int32: convert it on the device")
        addresses.append(view.pointer)
        owners.append(view.owner)
    return (*addresses, packed.num_tokens, packed.num_sequences), owners


def import_features(
    native: NativeSession, batch: PackedPatches[Any], stream: int
) -> tuple[tuple[int, str, int, int], Any]:
    """The address, dtype and shape of patches on the device, and the object that keeps them
    alive."""
    if native.device_index < 0:
        raise ValueError("features lie on a device, but this session runs on the CPU")
    view: DeviceView = import_array(
        "features", batch.features, native.device_index, stream or native.stream, native.wait_for
    )
    if view.dtype not in DTYPES:
        raise ValueError(f"features is {view.dtype}, expected {', '.join(DTYPES)}")
    rows, columns = view.shape
    return (view.pointer, view.dtype, rows, columns), view.owner


def output_names(
    native: NativeSession, outputs: Outputs, given: Iterable[str] = ()
) -> list[OutputName]:
    asked = (outputs,) if isinstance(outputs, str) else outputs
    names = cast(list[OutputName], list(dict.fromkeys((*asked, *given))))
    for name in names:
        if name not in native.outputs:
            known = ", ".join(native.outputs)
            hint = "; load it with max_predictions over 0" if name == "predictions" else ""
            raise ValueError(f"output '{name}' was asked for, but this model has: {known}{hint}")
    return names


def output_arrays(
    native: NativeSession,
    names: Iterable[OutputName],
    given: Mapping[str, FloatArray],
    num_tokens: int,
    num_sequences: int,
    num_rows: int = 0,
) -> dict[OutputName, FloatArray]:
    """The host arrays that a run writes to: the given ones after a check, and new ones for the
    other names. `num_rows` is the number of rows of "predictions"."""
    arrays = {}
    for name in names:
        per_token, columns = native.outputs[name]
        num = num_rows if name == "predictions" else num_tokens if per_token else num_sequences
        shape = (num, columns)
        array = given.get(name)
        if array is None:
            array = np.empty(shape, np.float32)
        elif (
            not isinstance(array, np.ndarray)
            or array.dtype != np.float32
            or array.shape != shape
            or not array.flags.c_contiguous
            or not array.flags.writeable
        ):
            found = (
                f"{array.dtype}{list(array.shape)}, contiguous: {array.flags.c_contiguous}, "
                f"writeable: {array.flags.writeable}"
                if isinstance(array, np.ndarray)
                else type(array).__name__
            )
            raise ValueError(
                f"out['{name}'] is {found}; expected a writeable C-contiguous "
                f"float32{list(shape)} array"
            )
        arrays[name] = array
    return arrays
