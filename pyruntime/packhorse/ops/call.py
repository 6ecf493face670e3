"""Steps of one call of an operator (packhorse.ops) before and after the computation."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse._native import device as _device
from packhorse._native import ops as _ops
from packhorse._native.ops import Operators
from packhorse.device import check_device, dtype_of, import_array, is_device_array, stream_handle
from packhorse.dtypes import choose_dtype
from packhorse.packing import as_int32

FloatArray = npt.NDArray[np.float32]
Norm = tuple[Any, Any, float]


@lru_cache(maxsize=16)
def shared_operators(
    device: str,
    dtype: str,
    threads: int | None,
    attention: str = "auto",
    skinny: bool = False,
) -> Operators:
    check_device(device)
    dtype = choose_dtype(dtype, device, dtype)
    return Operators(device, dtype, threads or 0, attention, skinny)


def as_float32(name: str, values: Any) -> FloatArray:
    """`values` as a C-contiguous float32 array. Raises ValueError for what is not numbers."""
    array = np.asarray(values)
    # "V" stands for number types from outside NumPy, such as bfloat16 of ml_dtypes.
    if array.dtype.kind not in "biufV":
        raise ValueError(f"{name} has dtype {array.dtype}, expected numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.require(array, np.float32, ["C", "A"])


def head_columns(operators: Operators, head_dim: int, frequencies: Any) -> npt.NDArray[np.int64]:
    """The order of a head's columns on the device, where `frequencies` [dims / 2] rotate them."""
    order = np.arange(head_dim)
    if frequencies is not None and operators.interleaves_heads:
        dims = 2 * len(frequencies)
        order[:dims] = order[:dims].reshape(2, -1).T.reshape(-1)
    return order


class OperatorCall:
    """Knows where one call runs, and converts its arrays to the form that the runtime takes."""

    def __init__(
        self,
        first: Any,
        matrix: Any,
        device: str,
        dtype: str,
        threads: int | None,
        stream: Any,
        attention: str = "auto",
        skinny: bool = False,
    ) -> None:
        """`first` lies where all arrays do, `matrix` has the dtype of all matrices, `attention`
        names an algorithm, and with `skinny` dense layers are those of models that generate."""
        self._owners: list[Any] = []
        self.stream: int | None = None
        if not is_device_array(first):
            if stream is not None:
                raise ValueError("stream is for arrays on a device, the first argument is not")
            self.operators = shared_operators(device, dtype, threads, attention, skinny)
            return
        self.stream = stream_handle(stream)
        if hasattr(first, "__dlpack_device__"):
            self._index = int(first.__dlpack_device__()[1])
        else:  # the CUDA array interface does not name the device
            self._index = int(device.partition(":")[2] or 0)
        self.operators = shared_operators(
            f"cuda:{self._index}", dtype_of(matrix), threads, attention, skinny
        )

    def put(self, name: str, array: Any) -> Any:
        """Converts an array of floats; see `as_float32`."""
        if array is None or is_device_array(array):
            return self._import(name, array)
        return as_float32(name, array)

    def put_ints(self, name: str, array: Any) -> Any:
        """Converts a vector of integers; see `as_int32`."""
        if array is None or is_device_array(array):
            return self._import(name, array)
        return as_int32(name, array)

    def put_rows(self, name: str, array: Any) -> Any:
        """Floats of any number of dimensions, as a matrix of what its last one holds."""
        if is_device_array(array):
            return self._import(name, array, as_rows=True)
        floats = as_float32(name, array)
        return floats.reshape(math.prod(floats.shape[:-1]), floats.shape[-1])

    def _import(self, name: str, array: Any, as_rows: bool = False) -> Any:
        if array is None:
            return None
        if self.stream is None:
            raise ValueError(f"{name} lies on a device, the first argument does not")
        own = self.operators
        view = import_array(name, array, self._index, self.stream or own.stream, own.wait_for)
        self._owners.append(view.owner)
        shape = view.shape
        if as_rows:
            shape = (math.prod(shape[:-1]), shape[-1])
        return _ops.device_view(view.pointer, shape, view.dtype)

    def put_pair(self, name: str, layer: tuple[Any, Any]) -> tuple[Any, Any]:
        return self.put(name, layer[0]), self.put("bias", layer[1])

    def put_norm(self, norm: Norm | None) -> Norm | None:
        if norm is None:
            return None
        gamma, beta, eps = norm
        return self.put("gamma", gamma), self.put("beta", beta), eps

    def result(self, found: Any) -> Any:
        return found if self.stream is None else _device.from_native(found)
