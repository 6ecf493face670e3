"""Device arrays of other libraries such as cuda.core, CuPy, PyTorch and JAX: all that support
DLPack or the CUDA array interface. This module never touches their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from packhorse._native import device as _device

_HOST = (1, 3)  # DLPack device types: CPU, page-locked host memory
_CUDA, _CUDA_MANAGED = 2, 13
_INT32_BYTES = 4
_TYPES = {"<i4": "int32", "<i8": "int64", "<f2": "float16", "<f4": "float32", "<f8": "float64"}


class DLPackArray(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


ForeignArray = DLPackArray | CudaArray  # an array of any library, on a device or on the host


def check_device(device: object) -> None:
    """Raises ValueError for a device that is no text, such as those of PyTorch."""
    if not isinstance(device, str):
        raise ValueError(
            f"device is {device!r:.80} of type {type(device).__name__}, expected 'cpu', 'cuda' or "
            "'cuda:N'; a torch.device is named by str(device)"
        )


class DeviceView(NamedTuple):
    """Memory, shape and dtype of an array. It is valid as long as `owner` is alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any


def is_device_array(array: Any) -> bool:
    """True if an array lies in the memory of a device. NumPy arrays and lists do not."""
    if isinstance(array, (np.ndarray, list, tuple)):
        return False
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] not in _HOST
    return hasattr(array, "__cuda_array_interface__")


def is_array(value: Any) -> bool:
    """True if `value` is an array of any library, on the host or on a device. Lists are not."""
    return hasattr(value, "__dlpack__") or is_device_array(value)


def _is_bytes(array: Any) -> bool:
    """True for an array with neither shape nor dtype, as a Buffer of cuda.core is. It is read as
    int32, the type of all that batches hold."""
    return not hasattr(array, "shape") and not hasattr(array, "__cuda_array_interface__")


def shape_of(array: Any) -> tuple[int, ...]:
    if _is_bytes(array):
        return (array.size // _INT32_BYTES,)
    shape = getattr(array, "shape", None)
    return tuple(array.__cuda_array_interface__["shape"] if shape is None else shape)


def dtype_of(array: Any) -> str:
    dtype = getattr(array, "dtype", None)
    if dtype is None and _is_bytes(array):
        return "int32"
    if dtype is None:
        typestr = str(array.__cuda_array_interface__["typestr"])
        return _TYPES.get(typestr, typestr)
    return str(dtype).rpartition(".")[2]  # PyTorch's dtypes print as torch.float16


def stream_handle(stream: Any) -> int:
    """Returns the handle of a stream, or 0 for None.

    Takes a raw handle, or an object that has `__cuda_stream__` (cuda.core), `cuda_stream` (PyTorch)
    or `ptr` (CuPy). Handle 0 is the legacy default stream, which DLPack calls 1.
    """
    if stream is None:
        return 0
    handle: Any = stream
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    else:
        for name in ("cuda_stream", "ptr"):
            handle = getattr(stream, name, handle)
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise ValueError(
            f"stream is {stream!r}, expected None, a handle, or an object with __cuda_stream__, "
            "cuda_stream or ptr"
        )
    return handle or 1


def _export(array: Any, stream: int) -> Any:
    try:
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # a producer from before DLPack 1.0
        return array.__dlpack__(stream=stream)


def import_array(
    name: str, array: Any, device: int, stream: int, wait_for: Callable[[int], None]
) -> DeviceView:
    """Returns where a row-major array on `cuda:device` lies, complete on `stream`.

    DLPack producers make it complete on `stream` themselves. For a stream that the CUDA array
    interface names, `wait_for` is called. Raises ValueError naming the array, what was found and
    what was expected.
    """
    if hasattr(array, "__dlpack_device__"):
        kind, index = array.__dlpack_device__()
        if kind == _CUDA and index != device:
            raise ValueError(f"{name} lies on cuda:{index}, expected cuda:{device}")
        if kind not in (_CUDA, _CUDA_MANAGED):
            raise ValueError(f"{name} lies on DLPack device type {int(kind)}, expected CUDA (2)")
        capsule = _export(array, stream)
        pointer, shape, dtype, contiguous = _device.read_capsule(capsule)
        owner = capsule
        if _is_bytes(array):
            if shape[0] % _INT32_BYTES:
                raise ValueError(f"{name} has {shape[0]} bytes, expected elements of int32")
            shape, dtype = (shape[0] // _INT32_BYTES,), "int32"
    else:
        interface = array.__cuda_array_interface__
        pointer, shape, owner = interface["data"][0] or 0, tuple(interface["shape"]), array
        dtype = _TYPES.get(interface["typestr"], interface["typestr"])
        itemsize = int(interface["typestr"][2:])
        strides = interface.get("strides")
        contiguous = strides is None or 0 in shape or _is_row_major(shape, strides, itemsize)
        if interface.get("mask") is not None:
            raise ValueError(f"{name} has a mask, expected none")
        producer = interface.get("stream")
        if producer == 0:
            raise ValueError(f"{name} names stream 0, which the CUDA array interface forbids")
        if producer is not None and producer != stream:
            wait_for(producer)
    if not contiguous:
        raise ValueError(f"{name} is not contiguous, expected row-major order")
    return DeviceView(pointer, shape, dtype, owner)


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    expected = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
