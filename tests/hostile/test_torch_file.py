"""PyTorch archives that attack their reader: each is refused with a message that says why."""

from __future__ import annotations

import os
import pickle
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_archive as t
from packhorse_weights import CheckpointError
from packhorse_weights.formats.torch.file import read_torch
from packhorse_weights.formats.torch.pickle import read_pickle
from packhorse_weights.tensor import to_float32
from packhorse_weights.weight_files import _read_shards

GOOD = t.tensor("0", 6, (2, 3))


def write(tmp_path: Path, pickled: bytes, count: int = 6) -> Path:
    return t.write_archive(tmp_path / "model.bin", pickled, {"0": t.floats(count)})


def test_a_shape_that_no_array_has(tmp_path: Path) -> None:
    path = write(tmp_path, t.state_dict(a=t.tensor("0", 6, (0, 1 << 62, 1 << 62), (1, 1, 1))))
    with pytest.raises(CheckpointError, match="larger than any array can be"):
        read_torch(path)


# --- what must work


def test_reads_tensors_as_views(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        t.state_dict(
            whole=GOOD,
            transposed=t.tensor("0", 6, (3, 2), (1, 3)),
            part=t.tensor("0", 6, (2,), (1,), offset=4),
            scalar=t.tensor("0", 6, (), (), offset=5),
            empty=t.tensor("0", 6, (0, 7)),
            single=t.tensor("0", 6, (1, 2), (1 << 70, 1)),
            parameter=t.call(t.glob("torch._utils", "_rebuild_parameter"), GOOD, t.FALSE, t.NONE),
        ),
    )
    tensors = read_torch(path)
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(tensors["whole"].data, whole)
    np.testing.assert_array_equal(tensors["transposed"].data, whole.T)
    np.testing.assert_array_equal(tensors["part"].data, [4, 5])
    np.testing.assert_array_equal(tensors["parameter"].data, whole)
    assert tensors["scalar"].data == 5
    assert tensors["empty"].shape == (0, 7)
    np.testing.assert_array_equal(tensors["single"].data, [[0, 1]])
    assert np.shares_memory(tensors["whole"].data, tensors["transposed"].data)
    assert not tensors["whole"].data.flags.writeable


def test_bfloat16_and_metadata_and_nesting(tmp_path: Path) -> None:
    inner = t.ordered_dict() + t.MARK + t.text("w") + t.tensor("0", 2, (2,), kind="BFloat16Storage")
    metadata = t.EMPTY_DICT + t.MARK + t.text("_metadata") + t.ordered_dict() + t.SETITEMS
    state = inner + t.SETITEMS + metadata + t.BUILD
    items = t.text("state_dict") + state + t.text("epoch") + t.integer(3)
    pickled = t.PROTO + t.EMPTY_DICT + t.MARK + items + t.SETITEMS + t.STOP
    path = t.write_archive(tmp_path / "m.pt", pickled, {"0": b"\x80\x3f\x00\xc0"})
    tensors = read_torch(path)
    assert tensors["w"].dtype == "bfloat16"
    np.testing.assert_array_equal(to_float32(tensors["w"]), [1.0, -2.0])


def test_protocol_4() -> None:
    """Opcodes that newer protocols use: frames, MEMOIZE, STACK_GLOBAL."""
    assert read_pickle(pickle.dumps({"a": [1, 2.5, None, ("x", True)]}, protocol=4)).value == {
        "a": [1, 2.5, None, ("x", True)]
    }


def test_shards(tmp_path: Path) -> None:
    for key in ("a", "b"):
        name = f"pytorch_model-{key}.bin"
        t.write_archive(tmp_path / name, t.state_dict(**{key: GOOD}), {"0": t.floats(6)})
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text('{"weight_map": {"a": "pytorch_model-a.bin", "b": "pytorch_model-b.bin"}}')
    tensors, files, format = _read_shards(index)
    assert (sorted(tensors), len(files), format) == (["a", "b"], 2, "torch")
    index.write_text('{"weight_map": {"a": "pytorch_model-a.bin", "b": "pytorch_model-a.bin"}}')
    with pytest.raises(CheckpointError, match="disagree"):
        _read_shards(index)


# --- pickles that want to run something


class _Reduce:
    def __init__(self, function: object, *arguments: object) -> None:
        self.value = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.value


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "bomb",
    [
        _Reduce(os.system, "touch /tmp/packhorse-was-here"),
        _Reduce(eval, "1+1"),
        _Reduce(exec, "x = 1"),
        _Reduce(getattr, "x", "upper"),
        _Reduce(__import__, "os"),
        _Reduce(subprocess.Popen, ["true"]),
        {"weights": [1, {"deep": (_Reduce(os.system, "true"),)}]},
        np.zeros(3),
        _Reduce,
        Path("x"),
        {1, 2},
        b"bytes",
    ],
)
def test_other_globals(tmp_path: Path, bomb: object, protocol: int) -> None:
    marker = Path("/tmp/packhorse-was-here")
    path = write(tmp_path, pickle.dumps(bomb, protocol=protocol))
    with pytest.raises(CheckpointError, match=r"refused|call|expected|not valid|not a valid"):
        read_torch(path)
    assert not marker.exists()


def test_the_global_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, pickle.dumps(_Reduce(os.system, "true"), protocol=2))
    with pytest.raises(CheckpointError, match=r"model\.bin.*'(posix|nt)\.system'.*refused"):
        read_torch(path)


REBUILD = t.glob("torch._utils", "_rebuild_tensor_v2")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # Calling what is not one of our functions.
        (t.call(t.text("os.system"), t.text("true")), "calls"),
        (t.call(GOOD, t.integer(1)), "calls"),
        (t.call(t.glob("torch", "FloatStorage"), t.integer(1)), "calls"),
        (REBUILD + t.text("not a tuple") + t.REDUCE, "calls"),
        (REBUILD + t.group() + t.REDUCE, "not from a storage"),
        (t.call(REBUILD, *[t.integer(1)] * 3), "not from a storage"),
        (t.call(t.glob("collections", "OrderedDict"), t.group()), "arguments"),
        (t.call(t.glob("torch", "Size"), t.integer(1), t.integer(1)), "torch.Size"),
        (t.call(t.glob("torch._utils", "_rebuild_parameter"), t.integer(1)), "not from a tensor"),
        (REBUILD + t.group() + b"\x81", "NEWOBJ"),
        # Names that only look like the allowed ones.
        (t.glob("torch._utils", "_rebuild_tensor_v2.__globals__"), "refused"),
        (t.glob("torch", "_utils._rebuild_tensor_v3"), "refused"),
        (t.glob("torch", "Size of a tensor"), r"'torch\.Size of a tensor'"),
        (t.integer(1) + t.integer(2) + b"\x93", "refused"),
        (t.text("os") + t.text("system") + b"\x93", r"'os\.system'"),
        # State where only an OrderedDict takes (and loses) it.
        (GOOD + t.EMPTY_DICT + t.BUILD, "BUILD"),
        # Stack and memo tricks.
        (t.REDUCE, "stack"),
        (b"0", "refused"),
        (b"j\xff\xff\xff\x7f", "memo"),
        (b"h\x07", "memo"),
        (b"t", "never opened"),
        (t.EMPTY_DICT + t.MARK + t.text("a") + t.SETITEMS, "without a value"),
        (t.EMPTY_DICT + t.group() + t.integer(1) + b"s", "dictionary key"),
        (t.integer(1) + t.integer(1) + b"a", "APPEND"),
        (t.text("x") + t.MARK + t.SETITEMS, "SETITEMS"),
        # Storage references.
        (t.text("storage") + b"Q", "storage reference"),
        (t.group(*[t.text("storage")] * 5) + b"Q", "storage reference"),
        (t.storage("../../etc/passwd", 6), "storage reference"),
        (t.storage("0/../1", 6), "storage reference"),
        (t.storage("0", -1), "storage reference"),
        (t.storage("0", 6, "QInt8Storage"), "QInt8Storage"),
        (b"P0\n", "PERSID"),
    ],
)
def test_pickle_tricks(tmp_path: Path, body: bytes, message: str) -> None:
    path = write(tmp_path, t.PROTO + body + t.STOP)
    with pytest.raises(CheckpointError, match=message):
        read_torch(path)


def test_huge_memo_index_costs_nothing() -> None:
    assert read_pickle(t.PROTO + t.NONE + b"r\xff\xff\xff\x7f" + t.STOP).value is None


def test_deep_and_repeated_nesting_ends_quickly() -> None:
    """Shared containers, doubled at each level: text of the result would have 2^200 parts."""
    level = b"q\x01h\x01\x86"
    with pytest.raises(CheckpointError):
        read_pickle(t.PROTO + t.group() + level * 200 + b"Q" + t.STOP)
    with pytest.raises(CheckpointError):
        read_pickle(t.PROTO + t.group() + level * 200 + t.group() + t.REDUCE + t.STOP)
    with pytest.raises(CheckpointError):  # a path into the C stack, were it hashed
        read_pickle(t.PROTO + t.EMPTY_DICT + t.group() + b"\x85" * 10**5 + t.NONE + b"s" + t.STOP)


@pytest.mark.parametrize("cut", [0, 1, 2, 10, 50, -1])
def test_truncated_pickle(tmp_path: Path, cut: int) -> None:
    with pytest.raises(CheckpointError):
        read_torch(write(tmp_path, t.state_dict(a=GOOD)[:cut]))


# --- tensors that reach out of their storage


@pytest.mark.parametrize(
    "value",
    [
        t.tensor("0", 6, (2, 3), offset=1),
        t.tensor("0", 6, (7,)),
        t.tensor("0", 6, (1 << 40,), (0,)),
        t.tensor("0", 6, (1 << 62, 1 << 62), (0, 0)),
        t.tensor("0", 6, (2, 3), (-3, 1), offset=3),
        t.tensor("0", 6, (-1,), (1,)),
        t.tensor("0", 6, (2,), (1,), offset=-1),
        t.tensor("0", 6, (2,), (1,), offset=1 << 70),
        t.tensor("0", 6, (2,), (1 << 61,)),
        t.tensor("0", 6, (2, 3), (3,)),
        t.tensor("0", 6, (1,) * 33),
        t.tensor("0", 7, (7,)),  # the storage is smaller than it says
        t.tensor("0", 5, (5,)),  # or larger
        t.tensor("0", 6, (6,), kind="DoubleStorage"),
        t.tensor("1", 6, (6,)),  # there is no storage "1"
    ],
)
def test_bounds(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        read_torch(write(tmp_path, t.state_dict(a=value)))


# --- archives


def test_compressed_entry(tmp_path: Path) -> None:
    bomb = {"0": bytes(1 << 20)}
    pickled = t.state_dict(a=t.tensor("0", 1 << 18, (1 << 18,)))
    path = t.write_archive(tmp_path / "m.bin", pickled, bomb, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="is compressed"):
        read_torch(path)


def test_big_endian(tmp_path: Path) -> None:
    path = t.write_archive(
        tmp_path / "m.bin", t.state_dict(a=GOOD), {"0": t.floats(6)}, {"byteorder": b"big"}
    )
    with pytest.raises(CheckpointError, match="byte order"):
        read_torch(path)


def test_torchscript(tmp_path: Path) -> None:
    path = t.write_archive(
        tmp_path / "m.pt", t.state_dict(a=GOOD), {"0": t.floats(6)}, {"constants.pkl": b"."}
    )
    with pytest.raises(CheckpointError, match="TorchScript"):
        read_torch(path)


def test_other_zip_and_double_entries(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.bin", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match=r"not one of torch\.save"):
        read_torch(tmp_path / "other.bin")
    path = write(tmp_path, t.state_dict(a=GOOD))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data/0", t.floats(6))
    with pytest.raises(CheckpointError, match="twice"):
        read_torch(path)


def test_every_truncation(tmp_path: Path) -> None:
    whole = write(tmp_path, t.state_dict(a=GOOD)).read_bytes()
    short = tmp_path / "short.bin"
    for size in range(len(whole)):
        short.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            read_torch(short)


def test_every_flipped_byte(tmp_path: Path) -> None:
    """Either refused, or read as tensors that lie within the file: never anything else."""
    whole = write(tmp_path, t.state_dict(a=GOOD)).read_bytes()
    path = tmp_path / "flipped.bin"
    refused = 0
    for position in range(len(whole)):
        for flip in ((0xFF,), (0x01, 0x80))[position % 2]:
            data = bytearray(whole)
            data[position] ^= flip
            path.write_bytes(data)
            try:
                for value in read_torch(path).values():
                    value.data.tobytes()
            except CheckpointError:
                refused += 1
    assert refused > len(whole) / 2


def test_entry_out_of_the_file(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path, t.state_dict(a=GOOD)).read_bytes())
    first = data.index(b"PK\x01\x02")
    data[first + 20 : first + 28] = b"\x00\x00\x00\x7f" * 2  # both sizes in the central directory
    path = tmp_path / "big.bin"
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        read_torch(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"hello", "not a PyTorch checkpoint$"),
        (bytes(257) + b"ustar" + bytes(300), "not a PyTorch checkpoint: a tar archive, as PyTorch"),
        (b"\x1f\x8b" + bytes(100), "not a PyTorch checkpoint: compressed by gzip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer, not"),
        (b"PK\x03\x04" + bytes(100), "damaged"),
    ],
)
def test_other_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_torch(path)
