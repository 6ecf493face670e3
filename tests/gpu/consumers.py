"""Common parts of the tests of device arrays: a small model, batches, and consumers.

A consumer is a library that makes arrays on the device and takes results there. Each is wrapped in
a class with the same two methods, put and take.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from dlpack_producer import Interface, Producer
from gpu_support import DEVICE
from models import random_sequences
from packhorse import DeviceArray, PackedTokens, Session, pack

# JAX would take most of the device's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


class PyTorch:
    def put(self, values: Any) -> Any:
        return torch.as_tensor(np.asarray(values, np.int32), device="cuda")

    def take(self, array: Any) -> npt.NDArray[np.float32]:
        return torch.from_dlpack(array).float().cpu().numpy()


class CuPy:
    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy")

    def put(self, values: Any) -> Any:
        return self.cupy.asarray(values, np.int32)

    def take(self, array: Any) -> npt.NDArray[np.float32]:
        host: npt.NDArray[np.float32] = self.cupy.from_dlpack(array).astype(np.float32).get()
        return host


class CuPyInterface(CuPy):
    """CuPy, whose arrays go in and out by the CUDA array interface."""

    def put(self, values: Any) -> Any:
        array = super().put(values)
        found = array.__cuda_array_interface__
        interface = Interface(found["data"][0], found["shape"], stream=found["stream"])
        interface.owner = array  # type: ignore[attr-defined]
        return interface

    def take(self, array: Any) -> npt.NDArray[np.float32]:
        host: npt.NDArray[np.float32] = self.cupy.asarray(array).astype(np.float32).get()
        return host


class Jax:
    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.jax = pytest.importorskip("jax")
            import jax.dlpack
            import jax.numpy

            if not any(device.platform == "gpu" for device in self.jax.devices()):
                pytest.skip("JAX sees no GPU")
            self.numpy, self.dlpack = jax.numpy, jax.dlpack

    def put(self, values: Any) -> Any:
        return self.numpy.asarray(np.asarray(values, np.int32))

    def take(self, array: Any) -> npt.NDArray[np.float32]:
        if 0 in array.shape:  # JAX cannot import empty arrays
            return array.numpy()  # type: ignore[no-any-return]
        return np.asarray(self.dlpack.from_dlpack(array).astype(np.float32))


class CudaCore:
    """Buffers of cuda.core, which order no work: what is put has been written."""

    def __init__(self) -> None:
        self.core = pytest.importorskip("cuda.core")
        self.utils = pytest.importorskip("cuda.core.utils")
        self.device = self.core.Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()

    def host(self, array: npt.NDArray[Any]) -> Any:
        return self.core.Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array)

    def put(self, values: Any) -> Any:
        array = np.ascontiguousarray(values, np.int32)
        there = self.device.allocate(max(4, array.nbytes), stream=self.stream)
        if not array.size:
            return self.utils.StridedMemoryView.from_buffer(there, (0,), dtype=array.dtype)
        there.copy_from(self.host(array), stream=self.stream)
        self.stream.sync()
        return there

    def take(self, array: Any) -> npt.NDArray[np.float32]:
        if 0 in array.shape:
            return array.numpy()  # type: ignore[no-any-return]
        handle = self.stream.__cuda_stream__()[1]
        view = self.utils.StridedMemoryView.from_dlpack(array, handle)
        found = np.empty(view.shape, view.dtype)
        there = self.core.Buffer.from_handle(view.ptr, found.nbytes, owner=view)
        self.host(found).copy_from(there, stream=self.stream)
        self.stream.sync()
        return found.astype(np.float32)


class Strict(PyTorch):
    """PyTorch behind a producer that keeps strictly to DLPack and makes the older capsules."""

    def put(self, values: Any) -> Any:
        array = super().put(values)
        torch.cuda.synchronize()
        producer = Producer(array.data_ptr(), tuple(array.shape), version=(0, 8))
        producer.owner = array  # type: ignore[attr-defined]
        return producer


CONSUMERS = {
    "torch": PyTorch,
    "cupy": CuPy,
    "cupy-interface": CuPyInterface,
    "jax": Jax,
    "cuda.core": CudaCore,
    "strict": Strict,
}

TORCH = PyTorch()

OUTPUTS = ["hidden", "embedding", "pooled"]
LENGTHS = [[40, 0, 3, 130, 1, 64], [1], [0, 0, 5, 0], [300], [7] * 20]
BATCH = pack(random_sequences(LENGTHS[0]))


def load(folder: Path, dtype: str = "float16", **options: Any) -> Session:
    sizes = {"max_tokens": 512, "max_sequences": 32, "kv_tokens": 0}
    return Session.load(folder, DEVICE, dtype, **{**sizes, **options})


def on_device(batch: PackedTokens, library: Any = TORCH) -> PackedTokens:
    arrays = (batch.ids, batch.cu_seqlens, batch.type_ids, batch.position_ids)
    return PackedTokens(*(None if array is None else library.put(array) for array in arrays))


def bits(result: Any) -> bytes:
    arrays = (getattr(result, name) for name in OUTPUTS)
    host = (a.numpy() if isinstance(a, DeviceArray) else a for a in arrays)
    return b"".join(a.tobytes() for a in host)


def variants(lengths: list[int]) -> list[PackedTokens]:
    """Batches without and with type and position ids. Those with position ids are not recorded."""
    plain = pack(random_sequences(lengths))
    types = np.arange(plain.num_tokens) % 2
    positions = np.arange(plain.num_tokens) % 300
    return [
        plain,
        PackedTokens(plain.ids, plain.cu_seqlens, types),
        PackedTokens(plain.ids, plain.cu_seqlens, None, positions),
        PackedTokens(plain.ids, plain.cu_seqlens, types, positions),
    ]
