"""PyTorch checkpoints from before 1.6: values as PyTorch wrote them, and files that attack."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import packhorse
import pytest
import torch_archive as t
from packhorse_weights import CheckpointError, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.formats.torch.file import read_torch
from packhorse_weights.tensor import to_float32

GOLDEN = Path(__file__).parents[1] / "golden"
BERT = GOLDEN / "bert-gelu"
GOOD = t.state_dict(a=t.tensor("0", 6, (2, 3)), b=t.tensor("7", 2, (2,), kind="HalfStorage"))
A, B = t.legacy_storage(t.floats(6), 6), t.legacy_storage(b"\x00\x3c\x00\xc0", 2)
KEYS = t.keys("0", "7")
HEADING = t.MAGIC + t.LAYOUT + t.machine()


def write(tmp_path: Path, *parts: bytes) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(b"".join(parts))
    return path


def test_reads_tensors_as_views(tmp_path: Path) -> None:
    tensors = read_torch(write(tmp_path, HEADING, GOOD, KEYS, A, B))
    np.testing.assert_array_equal(tensors["a"].data, np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(tensors["b"].data, np.array([1, -2], np.float16))
    assert not tensors["a"].data.flags.writeable
    assert tensors["b"].dtype == "float16"


def test_storages_in_another_order(tmp_path: Path) -> None:
    tensors = read_torch(write(tmp_path, HEADING, GOOD, t.keys("7", "0"), B, A))
    np.testing.assert_array_equal(tensors["a"].data, np.arange(6).reshape(2, 3))


def test_every_dtype_and_view() -> None:
    tensors = read_torch(GOLDEN / "legacy.bin")
    with np.load(GOLDEN / "legacy.npz") as expected:
        assert tensors.keys() == set(expected.files) - {"torch"}
        for name, tensor in tensors.items():
            values = to_float32(tensor) if tensor.dtype == "bfloat16" else tensor.data
            np.testing.assert_array_equal(values, expected[name], strict=True)


def test_a_session(tmp_path: Path) -> None:
    """Storages lie at any byte; what the runtime is given is aligned."""
    tensors = read_safetensors(BERT / "model.safetensors")
    pickled, data = {}, b""
    for i, (name, tensor) in enumerate(tensors.items()):
        assert tensor.dtype == "float32"
        pickled[name] = t.tensor(str(i), tensor.data.size, tensor.shape)
        data += t.legacy_storage(tensor.data.tobytes(), tensor.data.size)
    folder = Path(shutil.copytree(BERT, tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    state = t.state_dict(**pickled)
    heading = t.MAGIC + t.LAYOUT + t.machine()
    keys = t.keys(*map(str, range(len(tensors))))
    odd = len(heading + state + keys) % 2 == 0
    if odd:  # one more byte before the storages: the key of the first is longer
        keys = keys.replace(t.text("0"), t.text("00"))
        state = state.replace(t.text("0"), t.text("00"))
    (folder / "pytorch_model.bin").write_bytes(heading + state + keys + data)
    used = resolve_model(folder).tensors
    assert used is not None
    assert not all(
        tensor.data.flags.aligned for tensor in read_torch(folder / "pytorch_model.bin").values()
    )
    assert all(tensor.data.flags.aligned for tensor in used.values())
    batch = [[1, 2, 3], [4, 5]]
    expected = packhorse.Session.load(BERT).run(batch, ["hidden"]).hidden
    found = packhorse.Session.load(folder).run(batch, ["hidden"]).hidden
    np.testing.assert_array_equal(found, expected)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/packhorse-was-here",)


@pytest.mark.parametrize("place", range(5))
def test_a_bomb_in_every_pickle(tmp_path: Path, place: int) -> None:
    parts = [t.MAGIC, t.LAYOUT, t.machine(), GOOD, KEYS, A, B]
    parts[place] = pickle.dumps(_Bomb(), protocol=2)
    with pytest.raises(CheckpointError, match=r"refused|not a PyTorch checkpoint"):
        read_torch(write(tmp_path, *parts))
    assert not Path("/tmp/packhorse-was-here").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((t.MAGIC,), "does not end|not a valid pickle"),
        ((t.MAGIC, t.PROTO + t.integer(1000) + t.STOP), "version of the layout is 1000, expected"),
        ((t.MAGIC, t.PROTO + t.group() + t.STOP), "layout is a tuple, expected 1001"),
        ((t.MAGIC, t.LAYOUT, t.machine(t.FALSE)), "not little-endian"),
        ((t.MAGIC, t.LAYOUT, t.PROTO + t.group() + t.STOP), "not little-endian"),
        ((HEADING, GOOD, t.PROTO + t.group() + t.STOP), "keys of storages are a tuple, not a list"),
        ((HEADING, GOOD, t.keys("0", "0"), A, A), "comes twice"),
        ((HEADING, GOOD, t.keys("0", "8"), A, B), "that nothing names"),
        ((HEADING, GOOD, t.keys("0", "../x"), A, B), "that nothing names"),
        ((HEADING, GOOD, t.PROTO + b"]" + t.MARK + t.integer(0) + b"e" + t.STOP), "nothing names"),
        ((HEADING, GOOD, t.keys("0"), A), "there is no storage 7"),
        ((HEADING, GOOD, KEYS, A, t.legacy_storage(b"abcd", 3)), "3 elements, its tensors say 2"),
        ((HEADING, GOOD, KEYS, t.legacy_storage(b"", -1)), "has -1 elements"),
        ((HEADING, GOOD, KEYS, A, t.legacy_storage(b"ab", 2)), "takes 4 bytes from byte"),
        ((HEADING, GOOD, KEYS, A, b"ab"), "in the middle of its storages"),
        (
            (HEADING, t.state_dict(a=t.tensor("0", 1 << 60, (1,))), t.keys("0"),
             t.legacy_storage(b"", 1 << 60)),
            "takes 4611686018427387904 bytes",
        ),
        (
            (HEADING, t.state_dict(a=t.tensor("0", 6, (6,)), b=t.tensor("0", 7, (7,)))),
            "the storage 0 has two sizes or dtypes",
        ),
        ((HEADING, t.PROTO + t.integer(7) + t.STOP, t.keys()), "holds a int, not a dict"),
    ],
)  # fmt: skip
def test_files_that_lie(tmp_path: Path, parts: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.bin: .*{message}"):
        read_torch(write(tmp_path, *parts))


def test_views_of_views(tmp_path: Path) -> None:
    """Storages that are part of others: a field of the oldest files, None in all checkpoints."""
    old = GOOD.replace(t.integer(6) + b"tQ", t.integer(6) + t.NONE + b"tQ")
    assert old != GOOD
    assert read_torch(write(tmp_path, HEADING, old, KEYS, A, B)).keys() == {"a", "b"}
    other = GOOD.replace(t.integer(6) + b"tQ", t.integer(6) + t.group() + b"tQ")
    with pytest.raises(CheckpointError, match="storage reference"):
        read_torch(write(tmp_path, HEADING, other, KEYS, A, B))


def test_truncations_and_flipped_bytes(tmp_path: Path) -> None:
    """Either refused, or read as tensors that lie within the file: never anything else."""
    whole = write(tmp_path, HEADING, GOOD, KEYS, A, B).read_bytes()
    for size in range(0, len(whole), 2):
        with pytest.raises(CheckpointError):
            read_torch(write(tmp_path, whole[:size]))
    refused = 0
    for position in range(0, len(whole), 3):
        for flip in (0x01, 0x80):
            data = bytearray(whole)
            data[position] ^= flip
            try:
                for value in read_torch(write(tmp_path, bytes(data))).values():
                    value.data.tobytes()
            except CheckpointError:
                refused += 1
    assert refused > len(whole) // 3
