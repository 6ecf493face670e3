"""A DLPack producer to the letter of the protocol, over any memory: NumPy's, or a device's."""

from __future__ import annotations

import ctypes
from typing import Any

CUDA = 2
_CODES = {"int": 0, "float": 2, "bfloat": 4}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

# Memory that capsules point to; a capsule's own destructor frees it if no consumer took it.
_exported: dict[int, tuple[Any, Any]] = {}


def _destroy(capsule: int) -> None:
    for name, kind in ((b"dltensor", _Managed), (b"dltensor_versioned", _Versioned)):
        if _api.PyCapsule_IsValid(capsule, name):
            pointer = _api.PyCapsule_GetPointer(capsule, name)
            kind.from_address(pointer).deleter(pointer)  # type: ignore[attr-defined]


_destructor = _Destructor(_destroy)


class Producer:
    """int32[n] (or what `dtype` says) at `pointer`; remembers how it was asked and let go of.

    version  (1, 0) for capsules of that version, (0, 8) for older ones, whose producers do not know
             max_version
    """

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: str = "int32",
        *,
        device: tuple[int, int] = (CUDA, 0),
        strides: tuple[int, ...] | None = None,
        version: tuple[int, int] = (1, 0),
        byte_offset: int = 0,
    ) -> None:
        self.pointer, self.shape, self.dtype = pointer, shape, dtype
        self.device, self.strides, self.version = device, strides, version
        self.byte_offset = byte_offset
        self.streams: list[Any] = []
        self.deleted = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        versioned = self.version >= (1, 0)
        if not versioned and options:
            raise TypeError(f"unexpected {options}")
        self.streams.append(stream)
        kind = self.dtype.rstrip("0123456789")
        size = len(self.shape)
        shape = (ctypes.c_int64 * size)(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * size)(*self.strides)
        tensor = _Tensor(
            self.pointer,
            *self.device,
            size,
            _CODES[kind],
            int(self.dtype[len(kind) :]),
            1,
            shape,
            strides,
            self.byte_offset,
        )

        def delete(pointer: int) -> None:
            self.deleted += 1
            _exported.pop(pointer)

        deleter = _Deleter(delete)
        managed = (
            _Versioned(*self.version, None, deleter, 0, tensor)
            if versioned
            else _Managed(tensor, None, deleter)
        )
        address = ctypes.addressof(managed)
        _exported[address] = (managed, (shape, strides, deleter))
        name = b"dltensor_versioned" if versioned and options.get("max_version") else b"dltensor"
        return _api.PyCapsule_New(address, name, ctypes.cast(_destructor, ctypes.c_void_p))


class Interface:
    """An array with the CUDA array interface alone."""

    def __init__(self, pointer: int, shape: tuple[int, ...], typestr: str = "<i4", **more: Any):
        self.__cuda_array_interface__ = {
            "data": (pointer, False),
            "shape": shape,
            "typestr": typestr,
            "version": 3,
            **more,
        }
