"""Safetensors files and shard indices that attack their reader (the Python one)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from packhorse_weights import CheckpointError, Tensor
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.weight_files import _read_shards


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(begin: int, end: int, shape: object = None, dtype: object = "F32") -> dict[str, object]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "overlaps"),
        ({"a": entry(0, 8), "b": entry(0, 8)}, 8, "overlaps"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, 12, "gap"),
        ({"a": entry(4, 8)}, 8, "gap"),
        ({"a": entry(0, 4)}, 8, "8 bytes of data"),
        ({}, 4, "4 bytes of data"),
        ({"a": entry(0, 8)}, 4, "truncated"),
        ({"a": entry(8, 0, [1])}, 8, "span -8"),
        ({"a": entry(0, 8, [3])}, 8, "takes 12 bytes"),
        ({"a": entry(0, 8, [-2])}, 8, "shape"),
        ({"a": entry(0, 8, [2.0])}, 8, "shape"),
        ({"a": entry(0, 8, [True, 2])}, 8, "shape"),
        ({"a": entry(0, 8, "2")}, 8, "shape"),
        ({"a": entry(0, 4, [1 << 62, 1 << 62])}, 4, "takes"),
        ({"a": entry(0, 0, [0, 1 << 62, 1 << 62])}, 0, "larger than any array"),
        ({"a": entry(0, 0, [1 << 61, 0])}, 0, "larger than any array"),
        ({"a": entry(0, 4, [1] * 40)}, 4, "dimensions"),
        ({"a": entry(0, 4, [1 << 63])}, 4, "shape"),
        ({"a": entry(0, 8, dtype="F31")}, 8, "F31"),
        ({"a": entry(0, 8, dtype=["F32"])}, 8, "dtype"),
        ({"a": {**entry(0, 8), "data_offsets": [0, 4, 8]}}, 8, "offsets"),
        ({"a": {**entry(0, 8), "data_offsets": [-8, 0]}}, 8, "data_offsets"),
        ({"a": {**entry(0, 8), "more": 1}}, 8, "exactly"),
        ({"a": [1, 2]}, 8, "exactly"),
        ({"__metadata__": {"a": 1}}, 0, "__metadata__"),
        ({"__metadata__": "x"}, 0, "__metadata__"),
        (b'{"a": 1, "a": 2}', 0, "twice"),
        (b"[]", 0, "JSON object"),
        (b"{", 0, "JSON"),
        (b"", 0, "JSON"),
        (b'{"\xff": 1}', 0, "JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", 0, "JSON|exactly"),
        (DEEP, 0, "JSON|exactly"),
    ],
)
def test_header(tmp_path: Path, header: object, size: int, message: str) -> None:
    path = write(tmp_path / "m.safetensors", header, bytes(size))
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(path)


@pytest.mark.parametrize("length", [3, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_header_length(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointError, match="truncated|not valid JSON"):
        read_safetensors(write(tmp_path / "m", {"a": entry(0, 4)}, bytes(4), length))


def test_a_header_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"header of 16777217 bytes.*limit 16777216"):
        read_safetensors(write(tmp_path / "m", b" " * ((16 << 20) + 1)))


def test_names_are_counted_once(tmp_path: Path) -> None:
    """A name that comes last twice, behind as many others as take hours to count one by one."""
    names = ",".join(f'"{i:x}":0' for i in range(400_000))
    header = f'{{{names},"double":0,"double":0}}'.encode()
    with pytest.raises(CheckpointError, match="the key 'double' appears twice"):
        read_safetensors(write(tmp_path / "m", header))


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write_safetensors(path, {"a": Tensor(np.ones((2, 3), np.float32), "float32")})
    whole = path.read_bytes()
    assert read_safetensors(path)["a"].shape == (2, 3)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            read_safetensors(path)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write(tmp_path / "a.safetensors", {"a": entry(0, 4)}, bytes(4))
    write(tmp_path / "b.safetensors", {"b": entry(0, 4), "c": entry(4, 8)}, bytes(8))
    return tmp_path / "model.safetensors.index.json"


def test_shards(shards: Path) -> None:
    weight_map = {"a": "a.safetensors", "b": "b.safetensors", "c": "b.safetensors"}
    shards.write_text(json.dumps({"weight_map": weight_map}))
    tensors, files, _ = _read_shards(shards)
    assert sorted(tensors) == ["a", "b", "c"]
    assert [file.name for file in files] == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../a.safetensors"}, "leads out"),
        ({"a": "x/../../a.safetensors"}, "leads out"),
        ({"a": "/etc/passwd"}, "leads out"),
        ({"a": "..\\a.safetensors"}, "not a usable"),
        ({"a": "a\0b"}, "not a usable"),
        ({"a": 7}, "not a usable"),
        ({"a": "a.bin"}, "missing"),
        ({"a": "missing.safetensors"}, "missing"),
        ({"a": "."}, "missing"),
        ({"a": "a.safetensors", "b": "a.safetensors"}, "disagree"),
        ({"a": "a.safetensors", "b": "b.safetensors"}, "disagree.*'c'"),
        ({"c": "a.safetensors"}, "disagree"),
        ({}, "weight_map"),
        (["a.safetensors"], "weight_map"),
    ],
)
def test_bad_index(shards: Path, weight_map: object, message: str) -> None:
    shards.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        _read_shards(shards)
