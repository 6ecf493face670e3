"""Reads PyTorch checkpoints from before version 1.6, without PyTorch.

Such a file consists of consecutive pickles (a magic number, the version of the layout, a dict that
describes the machine, the object itself, the keys of its storages), then for each key the number of
elements and the elements. Source: `_legacy_save` and `_legacy_load` of PyTorch's
`torch/serialization.py`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.torch.pickle import (
    MAX_PICKLE_BYTES,
    Pickle,
    StridedTensor,
    read_pickle,
    show,
)
from packhorse_weights.tensor import PAYLOADS, Tensor

View = Callable[[StridedTensor], Tensor]

_MAGIC = 0x1950A86A20F9469CFC6C
_LAYOUT = 1001
# A pickle of the magic number begins like this: protocol 2, a long of ten bytes.
_BEGINNING = b"\x80\x02\x8a\n" + _MAGIC.to_bytes(10, "little")
_TAR = slice(257, 262)


def is_legacy(buffer: mmap.mmap) -> bool:
    return buffer[: len(_BEGINNING)] == _BEGINNING


def describe_other(buffer: mmap.mmap) -> str:
    """Says for messages what a file is that is not a checkpoint of either kind; "" if unknown."""
    if buffer[_TAR] == b"ustar":
        return (
            ": a tar archive, as PyTorch wrote them before 0.1.10, or a packed folder: unpack it, "
            "or load it with PyTorch where you trust it and save it again"
        )
    if buffer[:2] == b"\x1f\x8b":
        return ": compressed by gzip: unpack it first"
    return ""


class _Reader:
    """Reads the pickles, then the storages."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer, self.position = buffer, 0

    def pickle(self) -> Pickle:
        found = read_pickle(self.buffer[self.position : self.position + MAX_PICKLE_BYTES])
        self.position += found.size
        return found

    def number(self) -> int:
        data = self.buffer[self.position : self.position + 8]
        if len(data) < 8:
            raise CheckpointError(f"ends at byte {len(self.buffer)}, in the middle of its storages")
        self.position += 8
        (value,) = struct.unpack("<q", data)
        return int(value)


def _check_heading(reader: _Reader) -> None:
    for what, expected in (("magic number", _MAGIC), ("version of the layout", _LAYOUT)):
        if (found := reader.pickle().value) != expected or type(found) is not int:
            raise CheckpointError(f"the {what} is {show(found)}, expected {expected}")
    machine = reader.pickle().value
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise CheckpointError("written on a machine that is not little-endian, or does not say so")


def read_legacy(path: Path, buffer: mmap.mmap) -> tuple[Any, View]:
    """Returns (the object that the file holds, a function that makes a tensor from its
    description)."""
    reader = _Reader(buffer)
    begins: dict[str, int] = {}
    try:
        _check_heading(reader)
        saved = reader.pickle()
        keys = reader.pickle().value
        if not isinstance(keys, list):
            raise CheckpointError(f"the keys of storages are a {type(keys).__name__}, not a list")
        for key in keys:
            storage = saved.storages.get(key) if isinstance(key, str) else None
            if storage is None or key in begins:
                raise CheckpointError("a key of a storage that nothing names, or that comes twice")
            if (count := reader.number()) != storage.count:
                raise CheckpointError(
                    f"the storage {key} has {count} elements, its tensors say {storage.count}"
                )
            size = count * PAYLOADS[storage.dtype].itemsize
            if size > len(buffer) - reader.position:
                raise CheckpointError(
                    f"the storage {key} takes {size} bytes from byte {reader.position} on, the "
                    f"file has {len(buffer)}"
                )
            begins[key] = reader.position
            reader.position += size
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None

    def view(tensor: StridedTensor) -> Tensor:
        if tensor.storage.key not in begins:
            raise CheckpointError(f"{path}: there is no storage {tensor.storage.key}")
        return tensor.view(buffer, begins[tensor.storage.key])

    return saved.value, view
