"""GGUF files that attack their reader."""

from __future__ import annotations

import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse_weights import CheckpointError
from packhorse_weights.formats.gguf.config import read_config
from packhorse_weights.formats.gguf.file import GgufFile, read_gguf
from packhorse_weights.formats.gguf.model import open_gguf, open_tokenizer
from packhorse_weights.formats.gguf.names import read_tensors

GOLDEN = Path(__file__).parents[1] / "golden" / "gguf"
F32, F16, Q4_0, Q4_K, IQ4_NL = 0, 1, 2, 12, 20
U8, U32, BOOL, TEXT, ARRAY, U64 = 0, 4, 7, 8, 9, 10


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def text(content: str | bytes, length: int | None = None) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return u64(len(data) if length is None else length) + data


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return u32(kind) + u64(count) + values


def tensor(
    name: str | bytes = "a", dims: tuple[int, ...] = (4,), kind: int = F32, offset: int = 0
) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(
    entries: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    data: int = 0,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    num_tensors, num_entries = counts or (len(tensors), len(entries))
    header = magic + u32(version) + u64(num_tensors) + u64(num_entries)
    header += b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + bytes(data)


def nested(depth: int) -> bytes:
    value = array(U8, 1, b"\x01")
    for _ in range(depth):
        value = array(ARRAY, 1, value)
    return value


CASES: dict[str, tuple[bytes, str]] = {
    "short": (b"GG", "begins with b'GG', not b'GGUF': not a GGUF file"),
    "magic": (gguf(magic=b"GGML"), "begins with b'GGML', not b'GGUF'"),
    "no version": (b"GGUF", "version: 4 bytes from byte 4 on reach beyond the file"),
    "version 1": (gguf(version=1), "GGUF version 1; supported: 2, 3"),
    "version 4": (gguf(version=4), "GGUF version 4"),
    "big endian": (gguf(version=3 << 24), "a big-endian GGUF file; only little-endian"),
    "no counts": (b"GGUF" + u32(3) + u64(1), "number of entries: 8 bytes"),
    "many tensors": (gguf(counts=(1 << 62, 0)), "tensors and 0 metadata entries take .* are left"),
    "many entries": (gguf(counts=(0, (1 << 64) - 1)), "metadata entries take"),
    "fewer entries": (gguf([entry("a", U8, b"1")], counts=(0, 2)), "entry 1: a length of 0 bytes"),
    "empty key": (gguf([entry("", U8, b"1")]), "key of metadata entry 0: a length of 0 bytes"),
    "long key": (gguf([entry("k" * 65536, U8, b"1")]), "65536 bytes; expected from 1 to 65535"),
    "key beyond": (gguf([text("k", 60000) + u32(U8)]), "entry 0: 60000 bytes from byte"),
    "huge key": (gguf([text("k", (1 << 64) - 1)]), "a length of 18446744073709551615 bytes"),
    "key no text": (gguf([entry(b"\xff", U8, b"1")]), "entry 0: not UTF-8"),
    "same keys": (gguf([entry("k", U8, b"1")] * 2), "key 'k' appears twice"),
    "type 13": (gguf([entry("k", 13, b"1")]), "'k': a value of type 13; expected .* 0 to 12"),
    "bool 2": (gguf([entry("k", BOOL, b"\x02")]), "'k': a bool of the value 2; expected 0 or 1"),
    "bools": (gguf([entry("k", ARRAY, array(BOOL, 2, b"\x01\x07"))]), "a bool of the value 7"),
    "cut value": (gguf([entry("k", U64, b"")], alignment=1), "'k': 8 bytes from byte .* truncated"),
    "text beyond": (gguf([entry("k", TEXT, u64(1 << 63))]), "'k': 9223372036854775808 bytes"),
    "no text": (gguf([entry("k", TEXT, text(b"\xc3"))]), "'k': not UTF-8"),
    "array type": (gguf([entry("k", ARRAY, array(99, 1))]), "'k': an array of type 99"),
    "array count": (
        gguf([entry("k", ARRAY, array(U32, 1 << 62))]),
        "an array of 4611686018427387904 elements takes",
    ),
    "texts count": (
        gguf([entry("k", ARRAY, array(TEXT, 1 << 40))]),
        "elements takes 8796093022208",
    ),
    "arrays count": (gguf([entry("k", ARRAY, array(ARRAY, 1 << 61))]), "elements takes"),
    "text in array": (
        gguf([entry("k", ARRAY, array(TEXT, 2, text("a") + u64(1 << 50)))], data=64),
        r"'k'\[1\]: 1125899906842624 bytes",
    ),
    "array of no text": (
        gguf([entry("k", ARRAY, array(TEXT, 1, text(b"\xff")))]),
        r"'k'\[0\]: not UTF-8",
    ),
    "deep": (gguf([entry("k", ARRAY, nested(5))]), "arrays nested more than 4 deep"),
    "very deep": (gguf([entry("k", ARRAY, nested(9999))]), "arrays nested more than 4 deep"),
    "parts": (gguf([entry("split.count", U32, u32(3))]), "is one of 3 parts; join them"),
    "alignment 0": (gguf([entry("general.alignment", U32, u32(0))]), "alignment is 0; expected"),
    "alignment 24": (gguf([entry("general.alignment", U32, u32(24))]), "is 24; expected a power"),
    "alignment text": (gguf([entry("general.alignment", TEXT, text("8"))]), "alignment is '8'"),
    "no name": (gguf(tensors=[tensor("")], data=16), "name of tensor 0: a length of 0 bytes"),
    "long name": (gguf(tensors=[tensor("n" * 65)], data=16), "65 bytes; expected from 1 to 64"),
    "same names": (
        gguf(tensors=[tensor(), tensor(offset=32)], data=64),
        "tensor 'a' appears twice",
    ),
    "no dims": (gguf(tensors=[tensor(dims=()) + b" " * 8], data=16), "'a': 0 dimensions"),
    "five dims": (gguf(tensors=[tensor(dims=(1,) * 5)], data=16), "5 dimensions; expected 1 to 4"),
    "many dims": (
        gguf(tensors=[text("a") + u32(0xFFFFFFFF) + bytes(32)]),
        "4294967295 dimensions",
    ),
    "extent 0": (gguf(tensors=[tensor(dims=(4, 0))]), r"shape \[0, 4\]; expected extents from 1"),
    "overflow": (
        gguf(tensors=[tensor(dims=(1 << 32, 1 << 32))]),
        "larger than any array can be",
    ),
    "overflow to 0": (gguf(tensors=[tensor(dims=(1 << 63, 2))]), "larger than any array can be"),
    "overflow of bytes": (gguf(tensors=[tensor(dims=(1 << 62,))]), "larger than any array can be"),
    "unknown type": (gguf(tensors=[tensor(kind=77)], data=16), "type 77, which is not known; sup"),
    "other type": (
        gguf(tensors=[tensor(kind=IQ4_NL, dims=(32,))], data=18),
        "is of the type IQ4_NL; supported: F32, F16, Q4_0, Q4_1, Q5_0",
    ),
    "half a block": (
        gguf(tensors=[tensor(kind=Q4_0, dims=(48, 2))], data=54),
        "rows of 48 values; Q4_0 stores them in blocks of 32",
    ),
    "block in rows": (
        gguf(tensors=[tensor(kind=Q4_K, dims=(128, 2))], data=144),
        "rows of 128 values; Q4_K stores them in blocks of 256",
    ),
    "no data": (gguf(tensors=[tensor()]), "'a': ends at byte 16 of the 0 bytes of tensors"),
    "less data": (gguf(tensors=[tensor()], data=15), "ends at byte 16 of the 15 bytes"),
    "large": (
        gguf(tensors=[tensor(dims=(1 << 40,))], data=64),
        "ends at byte 4398046511104 of the",
    ),
    "offset": (
        gguf(tensors=[tensor(offset=8)], data=64),
        "offset 8 is no multiple of the alignment",
    ),
    "far offset": (
        gguf(tensors=[tensor(offset=(1 << 64) - 32)], data=64),
        "leaves a gap before it .offset 18446744073709551584, not 0",
    ),
    "gap": (gguf(tensors=[tensor(), tensor("b", offset=64)], data=96), "'b': leaves a gap"),
    "overlap": (gguf(tensors=[tensor(), tensor("b")], data=96), "'b': overlaps the one before it"),
    "overlap of large": (
        gguf(tensors=[tensor(dims=(16,)), tensor("b", offset=32)], data=128),
        "'b': overlaps the one before it .offset 32, not 64",
    ),
}


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", CASES)
def test_refused(tmp_path: Path, name: str) -> None:
    data, words = CASES[name]
    with pytest.raises(CheckpointError, match=words):
        read_gguf(write(tmp_path, data))


def test_what_is_allowed(tmp_path: Path) -> None:
    """Any order, another alignment, version 2, four dimensions, nested arrays, nothing at all."""
    entries = [
        entry("general.alignment", U32, u32(64)),
        entry("nested", ARRAY, nested(3)),
        entry("empty", ARRAY, array(TEXT, 0)),
        entry("none", TEXT, text("")),
    ]
    tensors = [tensor("b", (1, 2, 3, 4), F16, 64), tensor("a", (2, 8))]
    data = gguf(entries, tensors, data=64 + 48, version=2, alignment=64)
    file = read_gguf(write(tmp_path, data))
    assert (file.version, file.tensors["b"].shape) == (2, (4, 3, 2, 1))
    assert file.tensors["a"].blocks.shape == (8, 8)
    assert file.metadata["empty"] == []
    assert file.metadata["nested"][0][0][0].tolist() == [1]
    assert read_gguf(write(tmp_path, gguf())).tensors == {}


def test_empty_files_and_pointers(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the file is empty"):
        read_gguf(write(tmp_path, b""))
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        read_gguf(write(tmp_path, b"version https://git-lfs.github.com/spec/v1\n"))


def test_headers_have_a_limit(tmp_path: Path) -> None:
    """A header that grows with its file: 64 MiB are read of it at most, and what it asks for is
    refused before anything of that size is made."""
    path = tmp_path / "large.gguf"
    count = 1 << 27
    with path.open("wb") as file:
        file.write(gguf([text("k") + u32(ARRAY) + array(U8, count)], counts=(0, 1)))
        file.truncate(count + (1 << 20))  # sparse
    with pytest.raises(CheckpointError, match="134217728 elements takes"):
        read_gguf(path)


def test_many_small_texts_take_bounded_memory(tmp_path: Path) -> None:
    """A million of them, the last of which lies."""
    count = 1 << 20
    data = gguf([entry("k", ARRAY, array(TEXT, count, u64(0) * (count - 1) + u64(9)))], alignment=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=rf"'k'\[{count - 1}\]: 9 bytes"):
        read_gguf(write(tmp_path, data))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # in KiB


def test_every_truncation_and_flipped_bytes(tmp_path: Path) -> None:
    """Either refused or read: never anything else."""
    whole = gguf(
        [
            entry("general.architecture", TEXT, text("llama")),
            entry("a", ARRAY, array(TEXT, 3, text("x") + text("") + text("yz"))),
            entry("b", ARRAY, array(U32, 2, u32(1) + u32(2))),
            entry("c", BOOL, b"\x01"),
        ],
        [tensor("a", (32, 2), Q4_0), tensor("b", (3,), F32, 64)],
        data=64 + 12,
    )
    read_gguf(write(tmp_path, whole))
    for size in range(len(whole)):
        with pytest.raises(CheckpointError):
            read_gguf(write(tmp_path, whole[:size]))
    for position in range(0, len(whole) - 76, 2):
        flipped = bytearray(whole)
        flipped[position] ^= 0xFF
        try:
            read_gguf(write(tmp_path, bytes(flipped)))
        except CheckpointError:
            continue


def test_a_model_with_flipped_bytes_of_metadata(tmp_path: Path) -> None:
    """The whole way to tensors and a tokenizer."""
    whole = (GOLDEN / "llama.gguf").read_bytes()
    end = whole.index(b"token_embd.weight")
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(80):
        flipped = bytearray(whole)
        flipped[rng.integers(8, end)] ^= int(rng.integers(1, 256))
        path = write(tmp_path, bytes(flipped))
        try:
            open_gguf(path)
            open_tokenizer(path)
        except CheckpointError:
            refused += 1
    assert 5 < refused < 80


def with_metadata(name: str, keys: dict[str, Any]) -> GgufFile:
    file = read_gguf(GOLDEN / f"{name}.gguf")
    return GgufFile(file.path, 3, {**file.metadata, **keys}, file.tensors)


@pytest.mark.parametrize("key", ["head_count", "block_count", "embedding_length"])
@pytest.mark.parametrize("value", [0, -1, 1 << 40, 1.5, True, "7", None, [1], np.array([2, 3])])
def test_sizes_that_are_none(key: str, value: Any) -> None:
    key = f"llama.{'attention.' if key == 'head_count' else ''}{key}"
    with pytest.raises(CheckpointError, match="expected a whole number"):
        read_config(with_metadata("llama", {key: value}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "x", True])
def test_numbers_that_are_none(value: Any) -> None:
    keys = {"llama.rope.freq_base": value}
    with pytest.raises(CheckpointError, match=r"rope.freq_base: expected a number"):
        read_config(with_metadata("llama", keys))


def test_heads_that_do_not_fit_the_tensors() -> None:
    for keys in ({"llama.attention.head_count": 3}, {"llama.attention.key_length": 6}):
        file = with_metadata("llama", {**keys, "llama.rope.dimension_count": 6})
        with pytest.raises(CheckpointError, match="rows; expected|expected 3 positive|of heads of"):
            read_tensors(file, read_config(file)[0])
