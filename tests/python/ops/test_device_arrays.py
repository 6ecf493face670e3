"""Arrays of a device as they come in: protocols, streams, refusals. No device is needed."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dlpack_producer import Interface, Producer
from packhorse import DeviceArray, PackedTokens, Session, ops
from packhorse._native import device as _device
from packhorse.device import DeviceView, import_array, is_device_array, stream_handle

ARRAY = np.arange(6, dtype=np.int32)
ADDRESS = ARRAY.ctypes.data


def view_of(array: Any, stream: int = 7, waits: list[int] | None = None) -> DeviceView:
    return import_array("ids", array, 0, stream, ([] if waits is None else waits).append)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (0, 1),
        (1, 1),
        (2, 2),
        (1234, 1234),
        (SimpleNamespace(cuda_stream=5), 5),
        (SimpleNamespace(cuda_stream=0), 1),
        (SimpleNamespace(ptr=6), 6),
        (SimpleNamespace(__cuda_stream__=lambda: (0, 9), ptr=3), 9),
    ],
)
def test_stream_handle(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", [-1, 1.5, "1", object(), True, SimpleNamespace(ptr=None)])
def test_not_a_stream(stream: Any) -> None:
    with pytest.raises(ValueError, match="stream is .*, expected None, a handle"):
        stream_handle(stream)


def test_which_arrays_lie_on_a_device() -> None:
    assert is_device_array(Producer(ADDRESS, (6,)))
    assert is_device_array(Interface(ADDRESS, (6,)))
    for host in (ARRAY, [1], (1,), np.int32(1), Producer(ADDRESS, (6,), device=(1, 0)), 3, None):
        assert not is_device_array(host)
    assert not is_device_array(Producer(ADDRESS, (6,), device=(3, 0)))


@pytest.mark.parametrize("version", [(1, 0), (1, 3), (0, 8)])
def test_dlpack(version: tuple[int, int]) -> None:
    producer = Producer(ADDRESS, (6,), version=version, byte_offset=4)
    view = view_of(producer)
    assert view[:3] == (ADDRESS + 4, (6,), "int32")
    assert producer.streams == [7]
    assert producer.deleted == 0
    del view
    gc.collect()
    assert producer.deleted == 1


def test_streams_of_cuda_core() -> None:
    core = pytest.importorskip("cuda.core")
    assert stream_handle(core.LEGACY_DEFAULT_STREAM) == 1
    assert stream_handle(core.PER_THREAD_DEFAULT_STREAM) == 2


class Bytes:
    """A Buffer of cuda.core, as far as it can be had without a device: bytes without a shape."""

    def __init__(self, producer: Producer) -> None:
        self.size = producer.shape[0]
        self.__dlpack_device__ = producer.__dlpack_device__
        self.__dlpack__ = producer.__dlpack__


def test_bytes_without_a_type_are_int32() -> None:
    buffer = Bytes(Producer(ADDRESS, (24,), "int8"))
    assert view_of(buffer)[:3] == (ADDRESS, (6,), "int32")
    batch = PackedTokens(buffer, Bytes(Producer(ADDRESS, (12,), "int8")))
    assert (batch.num_tokens, batch.num_sequences) == (6, 2)
    with pytest.raises(ValueError, match="ids has 23 bytes, expected elements of int32"):
        view_of(Bytes(Producer(ADDRESS, (23,), "int8")))


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "bfloat16", "float32"])
def test_dtypes(dtype: str) -> None:
    assert view_of(Producer(ADDRESS, (2, 1), dtype)).dtype == dtype


def test_a_version_of_dlpack_to_come() -> None:
    producer = Producer(ADDRESS, (6,), version=(2, 0))
    with pytest.raises(BufferError, match="DLPack 2.0, expected 1.x"):
        view_of(producer)
    gc.collect()
    assert producer.deleted == 1
    with pytest.raises(ValueError, match="PyCapsule"):
        _device.read_capsule(object())


def test_strides() -> None:
    for shape, strides in (((2, 3), (3, 1)), ((2, 1, 3), (3, 99, 1)), ((0, 3), (7, 7)), ((), ())):
        assert view_of(Producer(ADDRESS, shape, strides=strides)).shape == shape
        in_bytes = tuple(4 * n for n in strides)
        assert view_of(Interface(ADDRESS, shape, strides=in_bytes)).shape == shape
    for shape, strides in (((3,), (2,)), ((2, 3), (1, 2)), ((3,), (-1,)), ((3,), (0,))):
        with pytest.raises(ValueError, match="ids is not contiguous"):
            view_of(Producer(ADDRESS, shape, strides=strides))
        with pytest.raises(ValueError, match="ids is not contiguous"):
            view_of(Interface(ADDRESS, shape, strides=tuple(4 * n for n in strides)))


def test_cuda_array_interface() -> None:
    for more, expected in (
        ({}, []),
        ({"stream": None}, []),
        ({"stream": 7}, []),
        ({"stream": 1}, [1]),
        ({"stream": 99, "strides": (4,)}, [99]),
    ):
        waits: list[int] = []
        assert view_of(Interface(ADDRESS, (6,), **more), 7, waits)[:3] == (ADDRESS, (6,), "int32")
        assert waits == expected
    for more, message in (
        ({"stream": 0}, "stream 0, which .* forbids"),
        ({"mask": ARRAY}, "ids has a mask"),
    ):
        with pytest.raises(ValueError, match=message):
            view_of(Interface(ADDRESS, (6,), **more))
    assert view_of(Interface(ADDRESS, (3,), "<i8")).dtype == "int64"


def test_another_device() -> None:
    with pytest.raises(ValueError, match="ids lies on cuda:1, expected cuda:0"):
        view_of(Producer(ADDRESS, (6,), device=(2, 1)))
    with pytest.raises(ValueError, match=r"DLPack device type 10, expected CUDA"):
        view_of(Producer(ADDRESS, (6,), device=(10, 0)))
    assert view_of(Producer(ADDRESS, (6,), device=(13, 0))).pointer == ADDRESS


def test_packed_tokens() -> None:
    ids, offsets = Producer(ADDRESS, (6,)), Interface(ADDRESS, (3,))
    batch = PackedTokens(ids, offsets, type_ids=Producer(ADDRESS, (6,)))
    assert batch.on_device
    assert (batch.num_tokens, batch.num_sequences) == (6, 2)
    assert batch.ids is ids
    assert ids.streams == []
    assert not PackedTokens([1, 2], [0, 2]).on_device
    with pytest.raises(ValueError, match="cu_seqlens lies on a device, expected host memory"):
        _ = batch.lengths
    for arguments, message in (
        (
            (ids, [0, 6]),
            "ids on a device, but cu_seqlens in host memory; expected all in",
        ),
        ((ARRAY, offsets), "cu_seqlens on a device, but ids in host memory"),
        ((ids, offsets, ARRAY), "ids, cu_seqlens on a device, but type_ids in host memory"),
        ((ids, offsets, offsets), "type_ids has 3 elements, ids has 6"),
        ((Producer(ADDRESS, (2, 3)), offsets), r"ids has shape \(2, 3\), expected one dimension"),
        ((ids, Producer(ADDRESS, (0,))), "cu_seqlens is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedTokens(*arguments)


def test_sessions_on_the_cpu_refuse(tiny_model: Any) -> None:
    session = Session.load(tiny_model, max_tokens=64, output_slots=3)
    assert not any("output" in buffer.name for buffer in session.memory_plan.arena.buffers)
    expected = session.run([[1, 2]]).hidden
    batch = (Producer(ADDRESS, (6,)), Producer(ADDRESS, (2,)))
    for on_device in (None, True, False):
        with pytest.raises(ValueError, match="the batch lies on a device, but .* on the CPU"):
            session.run(batch, on_device=on_device)
    for more in ({"on_device": True}, {"stream": 1}):
        with pytest.raises(ValueError, match="runs on cpu: .* in host memory, without a stream"):
            session.run([[1, 2]], **more)
    with pytest.raises(ValueError, match="on_device=True keeps them on the device"):
        session.run([[1, 2]], out={"hidden": expected}, on_device=True)
    with pytest.raises(ValueError, match=r"sequences\[0\] lies on a device"):
        session.run([Producer(ADDRESS, (6,))])  # type: ignore[list-item]
    assert (session.run([[1, 2]], on_device=False).hidden == expected).all()
    with pytest.raises(ValueError, match="output_slots is 65, expected 0 to 64"):
        Session.load(tiny_model, output_slots=65)


def test_operators_on_the_cpu_refuse() -> None:
    x = np.ones((2, 8), np.float32)
    with pytest.raises(ValueError, match="bias lies on a device, the first argument does not"):
        ops.gemm(x, x, Producer(ADDRESS, (2,), "float32"))
    with pytest.raises(ValueError, match="stream is for arrays on a device"):
        ops.gemm(x, x, stream=1)


def test_released() -> None:
    array = DeviceArray()
    assert repr(array) == "DeviceArray(released)"
    array.release()
    for use in (array.numpy, array.check, array.__dlpack__, lambda: array.shape):
        with pytest.raises(RuntimeError, match="released"):
            use()
