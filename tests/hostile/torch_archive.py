"""Writes PyTorch checkpoints opcode by opcode: well-formed ones and every kind of bad one."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np

PROTO = b"\x80\x02"
STOP = b"."
MARK = b"("
EMPTY_DICT = b"}"
NONE = b"N"
FALSE = b"\x89"
REDUCE = b"R"
BUILD = b"b"
SETITEMS = b"u"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def group(*items: bytes) -> bytes:
    """A tuple."""
    return MARK + b"".join(items) + b"t"


def glob(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + group(*arguments) + REDUCE


def storage(key: str, count: int, kind: str = "FloatStorage") -> bytes:
    pid = group(
        text("storage"), glob("torch", kind), text(key), text("cpu"), integer(count)
    )  # fmt: skip
    return pid + b"Q"


def ordered_dict() -> bytes:
    return glob("collections", "OrderedDict") + b")R"


def tensor(
    key: str,
    count: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
    kind: str = "FloatStorage",
) -> bytes:
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return call(
        glob("torch._utils", "_rebuild_tensor_v2"),
        storage(key, count, kind),
        integer(offset),
        group(*map(integer, shape)),
        group(*map(integer, strides)),
        FALSE,
        ordered_dict(),
    )


def state_dict(**tensors: bytes) -> bytes:
    items = b"".join(text(name) + value for name, value in tensors.items())
    return PROTO + ordered_dict() + MARK + items + SETITEMS + STOP


def write_archive(
    path: Path,
    pickle: bytes,
    storages: dict[str, bytes],
    extra: dict[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
    root: str = "archive/",
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(root + "data.pkl", pickle)
        for key, data in storages.items():
            archive.writestr(f"{root}data/{key}", data)
        for name, data in (extra or {"byteorder": b"little", "version": b"3\n"}).items():
            archive.writestr(root + name, data)
    return path


MAGIC = PROTO + integer(0x1950A86A20F9469CFC6C) + STOP
LAYOUT = PROTO + integer(1001) + STOP
TRUE = b"\x88"


def machine(little_endian: bytes = TRUE) -> bytes:
    return PROTO + EMPTY_DICT + MARK + text("little_endian") + little_endian + SETITEMS + STOP


def keys(*names: str) -> bytes:
    return PROTO + b"]" + MARK + b"".join(map(text, names)) + b"e" + STOP


def legacy_storage(data: bytes, count: int) -> bytes:
    return struct.pack("<q", count) + data


def floats(count: int) -> bytes:
    return np.arange(count, dtype="<f4").tobytes()
