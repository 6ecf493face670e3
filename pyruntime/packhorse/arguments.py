"""Arguments of a run, as the runtime takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from packhorse._session import NativeSession
from packhorse.device import import_array, is_device_array
from packhorse.packing import PackedTokens, TokenSequence, pack
from packhorse.result import FloatArray

Batch = PackedTokens | Sequence[TokenSequence] | tuple[Any, Any]


def as_batch(batch: Batch) -> PackedTokens:
    if isinstance(batch, PackedTokens):
        return batch
    # A tuple of two arrays is (ids, cu_seqlens); anything else holds sequences.
    if (
        isinstance(batch, tuple)
        and len(batch) == 2
        and (is_device_array(batch[0]) or all(np.ndim(part) == 1 for part in batch))
    ):
        return PackedTokens(*batch)
    return pack(batch)


def import_batch(
    native: NativeSession, packed: PackedTokens, stream: int
) -> tuple[tuple[int, ...], list[Any]]:
    """Of a batch on the device: addresses and sizes, and what keeps it alive."""
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


def output_names(
    native: NativeSession, outputs: Sequence[str], given: Iterable[str] = ()
) -> list[str]:
    if isinstance(outputs, str):
        outputs = (outputs,)
    names = list(dict.fromkeys((*outputs, *given)))
    for name in names:
        if name not in native.outputs:
            known = ", ".join(native.outputs)
            hint = "; load it with max_predictions over 0" if name == "predictions" else ""
            raise ValueError(f"output '{name}' was asked for, but this model has: {known}{hint}")
    return names


def output_arrays(
    native: NativeSession,
    names: Iterable[str],
    given: Mapping[str, FloatArray],
    num_tokens: int,
    num_sequences: int,
    num_rows: int = 0,
) -> dict[str, FloatArray]:
    """Host arrays to write into: those given, after a check, and new ones. `num_rows`: of
    predictions."""
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
