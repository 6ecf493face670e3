"""Reads PyTorch checkpoints (.bin, .pt) without PyTorch.

Since version 1.6 they are archives of uncompressed entries below one folder: data.pkl (the pickle
that names the tensors), data/KEY (one storage each), byteorder and version. Sources: PyTorch's
notes on serialisation (`torch.save`) and its `caffe2/serialize/inline_container.h`. legacy.py
reads older files.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from pathlib import Path
from typing import Any

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import map_file
from packhorse_weights.formats.torch.legacy import View, describe_other, is_legacy, read_legacy
from packhorse_weights.formats.torch.pickle import MAX_PICKLE_BYTES, StridedTensor, read_pickle
from packhorse_weights.tensor import PAYLOADS, Tensor


class _Archive:
    """The entries of a zip file as (begin, size) in the mapped file; nothing is extracted."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path, self.buffer = path, buffer
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise CheckpointError(f"{path}: damaged zip archive: {error}") from None
        self.spans: dict[str, tuple[int, int]] = {}
        for entry in entries:
            if entry.filename in self.spans:
                raise CheckpointError(f"{path}: the archive holds {entry.filename!r} twice")
            self.spans[entry.filename] = self._span(entry)
        roots = [name[: -len("data.pkl")] for name in self.spans if name.endswith("data.pkl")]
        if len(roots) != 1 or roots[0].count("/") > 1:
            raise CheckpointError(f"{path}: a zip archive, but not one of torch.save")
        self.root = roots[0]

    def _span(self, entry: zipfile.ZipInfo) -> tuple[int, int]:
        where = f"{self.path}: entry {entry.filename!r}"
        # torch.save never compresses. So views of the file are possible, and zip bombs are not.
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise CheckpointError(f"{where} is compressed; torch.save stores entries plainly")
        if entry.flag_bits & 1:
            raise CheckpointError(f"{where} is encrypted")
        # The entry's own header holds the lengths of its name and extra field (APPNOTE 4.3.7).
        start = max(entry.header_offset, 0)
        local = self.buffer[start : start + 30]
        if len(local) < 30 or local[:4] != b"PK\x03\x04":
            raise CheckpointError(f"{where}: no entry at byte {start}")
        begin = start + 30 + sum(struct.unpack("<HH", local[26:30]))
        if begin + entry.file_size > len(self.buffer):
            raise CheckpointError(
                f"{where}: bytes {begin} to {begin + entry.file_size} of a file of "
                f"{len(self.buffer)}"
            )
        return begin, entry.file_size

    def find(self, name: str) -> tuple[int, int]:
        if self.root + name not in self.spans:
            raise CheckpointError(f"{self.path}: the archive has no entry {name!r}")
        return self.spans[self.root + name]

    def read(self, name: str, limit: int) -> bytes:
        begin, size = self.find(name)
        if size > limit:
            raise CheckpointError(f"{self.path}: {name} has {size} bytes, at most {limit} expected")
        return self.buffer[begin : begin + size]

    def view(self, tensor: StridedTensor) -> Tensor:
        payload = PAYLOADS[tensor.storage.dtype]
        begin, size = self.find(f"data/{tensor.storage.key}")
        if size != tensor.storage.count * payload.itemsize:
            raise CheckpointError(
                f"{self.path}: storage {tensor.storage.key} has {size} bytes; expected "
                f"{tensor.storage.count} elements of {tensor.storage.dtype}"
            )
        return tensor.view(self.buffer, begin)


def _read_archive(path: Path, buffer: mmap.mmap) -> tuple[Any, View]:
    """Returns (the object that the archive holds, a function that makes a tensor from its
    description)."""
    archive = _Archive(path, buffer)
    if archive.root + "constants.pkl" in archive.spans:
        raise CheckpointError(f"{path}: a TorchScript program, not a checkpoint of weights")
    if archive.root + "byteorder" in archive.spans:
        order = archive.read("byteorder", 16)
        if order != b"little":
            raise CheckpointError(f"{path}: byte order {order!r}; expected little")
    data = archive.read("data.pkl", MAX_PICKLE_BYTES)
    try:
        return read_pickle(data).value, archive.view
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def read_torch(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a state dict, as read-only views of the file (not always contiguous
    or, in older files, aligned).

    In a training checkpoint that keeps its weights under "state_dict", they are read from there;
    everything that is not a tensor is ignored. Raises CheckpointError if the file is not a
    checkpoint, or describes anything that is not allowed.
    """
    buffer = map_file(path)
    if buffer[:4] == b"PK\x03\x04":
        state, view = _read_archive(path, buffer)
    elif is_legacy(buffer):
        state, view = read_legacy(path, buffer)
    else:
        raise CheckpointError(f"{path}: not a PyTorch checkpoint{describe_other(buffer)}")
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a dict of tensors")
    return {
        name: view(value)
        for name, value in state.items()
        if isinstance(name, str) and isinstance(value, StridedTensor)
    }
