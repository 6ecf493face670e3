"""GGUF files: metadata and tensors in one file, as llama.cpp reads them.

Format ("GGUF" in the documentation of ggml, versions 2 and 3): the letters GGUF; u32 version; u64
number of tensors; u64 number of metadata entries; these entries, each a key, u32 type and a value;
for each tensor its name, u32 number of dimensions, these (the innermost first), u32 type, u64
offset; then, from the next multiple of the alignment on, the tensors' bytes. Text is a u64 length
and UTF-8.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import map_file
from packhorse_weights.formats.gguf.blocks import BLOCK_TYPES, NAMES_OF_TYPES, BlockType
from packhorse_weights.tensor import is_addressable

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# Limit of the metadata and the descriptions of tensors; the Python objects made of them take more.
_MAX_HEADER_BYTES = 64 << 20
_MAX_KEY = 65535  # bytes
_MAX_NAME = 64
_MAX_DIMS = 4
_MAX_DEPTH = 4  # arrays within arrays
_ALIGNMENT = 32  # tensors begin at multiples of this, unless an entry says otherwise
_SHORTEST_ENTRY = 8 + 4 + 1  # bytes
_SHORTEST_TENSOR = 8 + 4 + 8 + 4 + 8

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_BOOL, _TEXT, _ARRAY = 7, 8, 9
# Type of a value -> how it lies in the file.
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


class StoredTensor(NamedTuple):
    """A tensor as it lies in the file.

    `shape` is that of the values, with the outermost dimension first. `blocks` is a read-only view
    of the mapped file, uint8 [rows, bytes of a row], where a row is one run of the innermost
    dimension.
    """

    shape: tuple[int, ...]
    kind: BlockType
    blocks: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class GgufFile:
    """Contents of a file. `metadata` maps a key to a bool, int, float or str. An array is a list if
    its elements are texts or arrays, and a NumPy array if they are numbers or bools."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class _Reader:
    """Walks through the header. Every step is checked against the end of what may be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer: mmap.mmap = map_file(path)
        self.end = min(len(self.buffer), _MAX_HEADER_BYTES)
        self.at = 0

    def fail(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")

    def need(self, size: int, what: str) -> int:
        """Returns where the next `size` bytes begin, and goes on behind them."""
        begin = self.at
        if size > self.end - begin:
            limit = (
                f"the {_MAX_HEADER_BYTES} bytes that a header may have"
                if self.end < len(self.buffer)
                else "the file ends there: truncated?"
            )
            raise self.fail(f"{what}: {size} bytes from byte {begin} on reach beyond {limit}")
        self.at = begin + size
        return begin

    def u32(self, what: str) -> int:
        found: int = _U32.unpack_from(self.buffer, self.need(4, what))[0]
        return found

    def u64(self, what: str) -> int:
        found: int = _U64.unpack_from(self.buffer, self.need(8, what))[0]
        return found

    def text(self, what: str, longest: int | None = None) -> str:
        size = self.u64(what)
        if longest is not None and not 0 < size <= longest:
            raise self.fail(f"{what}: a length of {size} bytes; expected from 1 to {longest}")
        begin = self.need(size, what)
        try:
            return self.buffer[begin : begin + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what}: not UTF-8: {error}") from None

    def texts(self, count: int, what: str) -> list[str]:
        """Reads `count` texts, as `text` reads one."""
        if count and (short := self._short_texts(count)) is not None:
            return short
        found: list[str] = []
        buffer, at, end, unpack = self.buffer, self.at, self.end, _U64.unpack_from
        try:
            for _ in range(count):
                (size,) = unpack(buffer, at) if at + 8 <= end else (end,)
                begin = at + 8
                if size > end - begin:
                    break
                found.append(buffer[begin : begin + size].decode())
                at = begin + size
        except UnicodeDecodeError as error:
            raise self.fail(f"{what}[{len(found)}]: not UTF-8: {error}") from None
        self.at = at
        if len(found) < count:
            self.text(f"{what}[{len(found)}]")  # says what is wrong
        return found

    def _short_texts(self, count: int) -> list[str] | None:
        """Reads `count` texts of up to 65,535 bytes without a zero byte, all at once: a vocabulary
        and its merges are 100,000 texts. Returns None, and has read nothing, where they are not
        all such texts or anything else is wrong."""
        room = self.end - self.at
        window = min(room, 24 * count)
        while True:
            held = np.frombuffer(self.buffer, np.uint8, window, self.at)
            filled = held != 0
            # Six zeros, the upper bytes of its length, stand before each text.
            zeros = ~filled
            zeros = zeros[:-1] & zeros[1:]  # two in a row, of which four, then all six
            zeros = zeros[:-4] & zeros[2:-2] & zeros[4:]
            begins = np.flatnonzero(zeros[:-1] & filled[6:])[:count] + 6
            lengths = begins - 8
            sizes = held[lengths] + (held[lengths + 1].astype(np.int64) << 8)
            ends = begins + sizes
            if len(begins) == count and ends[-1] <= window:
                break
            if window == room:
                return None
            window = min(room, 2 * window)
        if begins[0] != 8 or (begins[1:] != ends[:-1] + 8).any():
            return None
        # All but zeros is texts, except for the lower bytes of their lengths.
        is_text = filled[: ends[-1]]
        is_text[lengths] = is_text[lengths + 1] = False
        if np.count_nonzero(is_text) != sizes.sum():
            return None
        # The first byte of each length but the first becomes a zero that parts two texts.
        joined = held[: ends[-1]].copy()
        joined[lengths] = 0
        is_text[lengths[1:]] = True
        try:
            found: list[str] = joined[is_text].tobytes().decode().split("\0")
        except UnicodeDecodeError:
            return None
        self.at += int(ends[-1])
        return found

    def numbers(self, kind: int, count: int, what: str) -> NDArray[Any]:
        dtype = _NUMBERS[kind]
        begin = self.need(count * dtype.itemsize, what)
        found: NDArray[Any] = np.frombuffer(self.buffer, dtype, count, begin)
        if kind != _BOOL:
            return found
        if (found > 1).any():
            raise self.fail(f"{what}: a bool of the value {int(found.max())}; expected 0 or 1")
        return found.astype(bool)

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _TEXT:
            return self.text(what)
        if kind in _NUMBERS:
            return self.numbers(kind, 1, what).item()
        if kind != _ARRAY:
            raise self.fail(f"{what}: a value of type {kind}; expected a type from 0 to 12")
        if depth == _MAX_DEPTH:
            raise self.fail(f"{what}: arrays nested more than {_MAX_DEPTH} deep")
        inner, count = self.u32(what), self.u64(what)
        if inner not in (*_NUMBERS, _TEXT, _ARRAY):
            raise self.fail(f"{what}: an array of type {inner}; expected a type from 0 to 12")
        smallest = _NUMBERS[inner].itemsize if inner in _NUMBERS else 8 if inner == _TEXT else 12
        if count * smallest > self.end - self.at:
            raise self.fail(
                f"{what}: an array of {_count(count, 'element')} takes {count * smallest} bytes at "
                f"least, and {self.end - self.at} are left: truncated?"
            )
        if inner in _NUMBERS:
            return self.numbers(inner, count, what)
        if inner == _TEXT:
            return self.texts(count, what)
        return [self.value(inner, what, depth + 1) for _ in range(count)]


def _read_metadata(reader: _Reader, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for i in range(count):
        key = reader.text(f"key of metadata entry {i}", _MAX_KEY)
        if key in metadata:
            raise reader.fail(f"the metadata key {key!r:.80} appears twice")
        metadata[key] = reader.value(reader.u32(f"{key!r:.80}"), f"{key!r:.80}")
    return metadata


class _Description(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int
    size: int  # in bytes


def _describe(reader: _Reader, name: str) -> _Description:
    what = f"tensor {name!r}"
    dims = reader.u32(what)
    if not 1 <= dims <= _MAX_DIMS:
        raise reader.fail(f"{what}: {dims} dimensions; expected 1 to {_MAX_DIMS}")
    shape = tuple(reader.u64(what) for _ in range(dims))[::-1]
    code, offset = reader.u32(what), reader.u64(what)
    if code not in BLOCK_TYPES:
        known = NAMES_OF_TYPES.get(code)
        raise reader.fail(
            f"{what}: is of the type {known or code}{'' if known else ', which is not known'}; "
            f"supported: {', '.join(kind.name for kind in BLOCK_TYPES.values())}"
        )
    kind = BLOCK_TYPES[code]
    if 0 in shape:
        raise reader.fail(f"{what}: shape {list(shape)}; expected extents from 1")
    if not is_addressable(shape, 4):
        raise reader.fail(f"{what}: shape {list(shape)} is larger than any array can be")
    if shape[-1] % kind.elements:
        raise reader.fail(
            f"{what}: rows of {shape[-1]} values; {kind.name} stores them in blocks of "
            f"{kind.elements}"
        )
    return _Description(name, shape, kind, offset, math.prod(shape) // kind.elements * kind.size)


def _check_places(
    reader: _Reader, tensors: dict[str, _Description], alignment: int, data: int
) -> None:
    """Checks that every tensor lies within the file, right behind the one before it."""
    position = 0
    room = len(reader.buffer) - data
    for tensor in sorted(tensors.values(), key=lambda one: one.offset):
        what = f"tensor {tensor.name!r}"
        if tensor.offset % alignment:
            raise reader.fail(
                f"{what}: offset {tensor.offset} is no multiple of the alignment, {alignment}"
            )
        if tensor.offset != position:
            kind = (
                "overlaps the one before it"
                if tensor.offset < position
                else "leaves a gap before it"
            )
            raise reader.fail(f"{what}: {kind} (offset {tensor.offset}, not {position})")
        if tensor.size > room - tensor.offset:
            raise reader.fail(
                f"{what}: ends at byte {tensor.offset + tensor.size} of the {max(room, 0)} bytes "
                "of tensors: truncated?"
            )
        position = _align(tensor.offset + tensor.size, alignment)


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _read_alignment(reader: _Reader, metadata: dict[str, Any]) -> int:
    found = metadata.get("general.alignment", _ALIGNMENT)
    if type(found) is not int or not 0 < found < 1 << 31 or found & (found - 1):
        raise reader.fail(f"general.alignment is {found!r:.40}; expected a power of two")
    return found


def _check_version(reader: _Reader) -> int:
    if reader.buffer[:4] != MAGIC:
        raise reader.fail(f"begins with {reader.buffer[:4]!r}, not {MAGIC!r}: not a GGUF file")
    reader.need(4, "magic")
    version = reader.u32("version")
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise reader.fail("a big-endian GGUF file; only little-endian ones are supported")
    raise reader.fail(f"GGUF version {version}; supported: {', '.join(map(str, VERSIONS))}")


def _serve(reader: _Reader, tensors: dict[str, _Description], data: int) -> Iterator[Any]:
    for name, tensor in tensors.items():
        rows = math.prod(tensor.shape[:-1])
        shape = (rows, tensor.size // rows)
        blocks = np.ndarray(shape, np.uint8, reader.buffer, data + tensor.offset)
        yield name, StoredTensor(tensor.shape, tensor.kind, blocks)


_opened: WeakValueDictionary[tuple[int, int, int, int], GgufFile] = WeakValueDictionary()


def read_gguf(path: Path) -> GgufFile:
    """The metadata of a file, and its tensors as views of it. All is checked before any is served.
    While the result of an earlier call is held by somebody, and the file has not changed, that is
    what is returned: loading a model asks for its file in several places.

    Raises CheckpointError on anything that the format does not allow, for types of tensors that are
    not supported, and for files that come in parts.
    """
    found = path.stat()
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    opened = _opened.get(key)
    if opened is None:
        opened = _opened[key] = _read(path)
    return opened


def _read(path: Path) -> GgufFile:
    reader = _Reader(path)
    version = _check_version(reader)
    num_tensors, num_entries = reader.u64("number of tensors"), reader.u64("number of entries")
    least = num_tensors * _SHORTEST_TENSOR + num_entries * _SHORTEST_ENTRY
    if least > reader.end - reader.at:
        raise reader.fail(
            f"{_count(num_tensors, 'tensor')} and {num_entries} metadata entries take {least} "
            f"bytes at least, and {reader.end - reader.at} are left: truncated?"
        )
    metadata = _read_metadata(reader, num_entries)
    parts = metadata.get("split.count", 0)
    if type(parts) is not int or parts not in (0, 1):
        raise reader.fail(
            f"is one of {parts!r:.20} parts; join them: llama-gguf-split --merge FIRST_PART WHOLE"
        )
    tensors: dict[str, _Description] = {}
    for i in range(num_tensors):
        name = reader.text(f"name of tensor {i}", _MAX_NAME)
        if name in tensors:
            raise reader.fail(f"the tensor {name!r} appears twice")
        tensors[name] = _describe(reader, name)
    alignment = _read_alignment(reader, metadata)
    data = _align(reader.at, alignment)
    _check_places(reader, tensors, alignment, data)
    return GgufFile(path, version, metadata, dict(_serve(reader, tensors, data)))
