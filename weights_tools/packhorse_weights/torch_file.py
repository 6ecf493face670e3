"""PyTorch zip checkpoints (.bin, .pt), without PyTorch.

An archive of uncompressed entries below one folder: data.pkl (the pickle that names the tensors),
data/KEY (one storage each), byteorder, version. Source: the notes on serialisation of PyTorch
(`torch.save`) and its `caffe2/serialize/inline_container.h`.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from pathlib import Path

import numpy as np

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import map_file
from packhorse_weights.tensor import PAYLOADS, Tensor, is_addressable
from packhorse_weights.torch_pickle import StridedTensor, load_pickle

_MAX_PICKLE_BYTES = 16 << 20
_LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # the long that opens a file of the old format


class _Archive:
    """The entries of a zip file as (begin, size) in the mapped file: nothing is extracted."""

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
        # torch.save never compresses; so neither views of the file nor zip bombs are a question.
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise CheckpointError(f"{where} is compressed; torch.save stores entries plainly")
        if entry.flag_bits & 1:
            raise CheckpointError(f"{where} is encrypted")
        # Length of name and extra field, as the entry's own header has them (APPNOTE 4.3.7).
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
        if not is_addressable(tensor.shape, payload.itemsize):
            raise CheckpointError(
                f"{self.path}: a tensor of shape {list(tensor.shape)} is larger than any array "
                "can be"
            )
        if 0 in tensor.shape:
            return Tensor(np.empty(tensor.shape, payload), tensor.storage.dtype)
        data = np.ndarray(
            tensor.shape,
            payload,
            self.buffer,
            begin + tensor.offset * payload.itemsize,
            # The stride of a single element says nothing, and may be any number.
            tuple(
                payload.itemsize * (stride if size > 1 else 1)
                for size, stride in zip(tensor.shape, tensor.strides, strict=True)
            ),
        )
        return Tensor(data, tensor.storage.dtype)


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict, as read-only views of the file (not always contiguous).

    A training checkpoint that keeps its weights under "state_dict" is read from there; whatever is
    not a tensor is left out. Raises CheckpointError: not such a file, or not only tensors.
    """
    buffer = map_file(path)
    if buffer[:4] != b"PK\x03\x04":
        kind = "a PyTorch zip checkpoint"
        if _LEGACY_MAGIC in buffer[:64]:
            kind = "written since PyTorch 1.6: it has the older format, a bare pickle"
        raise CheckpointError(
            f"{path}: not {kind}. Load it where you trust it and save it again, with torch.save "
            "or as safetensors"
        )
    archive = _Archive(path, buffer)
    if archive.root + "constants.pkl" in archive.spans:
        raise CheckpointError(f"{path}: a TorchScript program, not a checkpoint of weights")
    if archive.root + "byteorder" in archive.spans:
        order = archive.read("byteorder", 16)
        if order != b"little":
            raise CheckpointError(f"{path}: byte order {order!r}; expected little")
    try:
        state = load_pickle(archive.read("data.pkl", _MAX_PICKLE_BYTES))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a dict of tensors")
    return {
        name: archive.view(value)
        for name, value in state.items()
        if isinstance(name, str) and isinstance(value, StridedTensor)
    }
