"""Tensors: a NumPy array with the name of its dtype, because NumPy has no bfloat16."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.errors import CheckpointError

# A dtype's name -> the NumPy dtype of the payload (for bfloat16 and float8, their bits as
# integers). Data is always little-endian.
PAYLOADS: dict[str, np.dtype[Any]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "float8": np.dtype("u1"),  # e4m3
    "bool": np.dtype("?"),
}
# The dtypes that a converted folder may hold and that the runtime reads.
WEIGHT_DTYPES = ("float32", "float16", "bfloat16")
BLOCK = 1 << 22  # elements cast at a time: bounds the temporaries of a large table


class FileBlocks(NamedTuple):
    """A tensor as a file holds it quantised, in blocks that the runtime decodes itself.

    kind: as ggml names it. data: uint8 [rows, bytes of a row], C-contiguous. shape: that of the
    values. row_order: None, or int32 [rows]: row i of the tensor is row row_order[i] of `data`,
    where all dimensions but the last are counted as one.
    """

    kind: str
    data: NDArray[np.uint8]
    shape: tuple[int, ...]
    row_order: NDArray[np.int32] | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """`data` holds the payload as PAYLOADS[dtype]; it may be a read-only view of a file."""

    data: NDArray[Any]
    dtype: str

    is_made: ClassVar[bool] = False  # True: `data` is made each time that it is asked for

    @property
    def file_blocks(self) -> FileBlocks | None:
        """The blocks of a file that `data` is made of, for those who can read them."""
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values, however they are stored."""
        return self.data.shape

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def stored(self) -> tuple[str, int]:
        """(the form that a file holds the values in, their bytes there)."""
        return self.dtype, self.size * PAYLOADS[self.dtype].itemsize

    def describe(self) -> str:
        """Describes the tensor for messages, such as `float32[4, 8]`."""
        return f"{self.dtype}{list(self.shape)}"

    def blocks(self) -> Iterator[NDArray[Any]]:
        """The payload, flat and in order, in blocks of bounded size."""
        flat = self.data.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            yield flat[start : start + BLOCK]


class LazyTensor(Tensor):
    """A tensor whose payload is made each time that it is asked for, and not kept.

    make: returns the payload, C-contiguous, of this shape and dtype. stored: see `Tensor`.
    """

    __slots__ = ("_make", "_shape", "_stored")

    is_made: ClassVar[bool] = True
    _make: Callable[[], NDArray[Any]]
    _shape: tuple[int, ...]
    _stored: tuple[str, int]

    def __init__(
        self,
        make: Callable[[], NDArray[Any]],
        shape: tuple[int, ...],
        dtype: str,
        stored: tuple[str, int],
    ) -> None:
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_shape", shape)
        object.__setattr__(self, "_stored", stored)

    @property
    def data(self) -> NDArray[Any]:
        return self._make()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def stored(self) -> tuple[str, int]:
        return self._stored


# Families whose published checkpoints reach numbers beyond float16's in their feed-forward blocks.
_BEYOND_FLOAT16 = ("t5", "mt5", "umt5")


def leaves_float16(family: object) -> bool:
    """True if activations of models of this family leave float16's range."""
    return family in _BEYOND_FLOAT16


def default_dtype(
    device: str, stored: str = "float32", generates: bool = False, family: object = None
) -> str:
    """The dtype of a session that is not asked for one.

    It is int8 or float8 if the weights are quantised to it. Otherwise it is, on the CPU, "stored"
    for weights that are quantised in groups; that of 16-bit weights in a session that generates,
    whose steps take as long as reading them; else float32. On CUDA it is bfloat16 if the weights
    are stored in it or the family's numbers leave float16's range, else float16. stored:
    `Checkpoint.stored_dtype`. family: of the spec.
    """
    if stored in ("int8", "float8"):
        return stored
    if not device.startswith("cuda"):
        kept = ("stored", "bfloat16", "float16") if generates else ("stored",)
        return stored if stored in kept else "float32"
    beyond = stored in ("float32", "stored") and leaves_float16(family)
    wide = stored == "bfloat16" or beyond
    return "bfloat16" if wide else "float16"


def _float8_values() -> NDArray[np.float32]:
    """The value of each byte of e4m3: a sign, 4 bits of exponent with bias 7, 3 of mantissa."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa / 512, (8 + mantissa) * 2.0 ** (exponent - 10))
    size[code & 127 == 127] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


_FLOAT8_VALUES = _float8_values()


def is_addressable(shape: Sequence[int], itemsize: int) -> bool:
    """True if an array can have this shape: its size in bytes, without extents of 0, is below
    2^63."""
    return math.prod(extent for extent in shape if extent > 0) * itemsize < 1 << 63


def to_float32(tensor: Tensor) -> NDArray[np.float32]:
    """Returns the values as float32, copied unless they are float32 already."""
    if tensor.dtype == "bfloat16":
        return (tensor.data.astype(np.uint32) << 16).view(np.float32)
    if tensor.dtype == "float8":
        values: NDArray[np.float32] = _FLOAT8_VALUES[tensor.data]
        return values
    with np.errstate(over="ignore"):
        return tensor.data.astype(np.float32, copy=False)


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    # Rounds to nearest, ties to even. The rounding must not turn a NaN into infinity.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def cast_blocks(tensor: Tensor, dtype: str, name: str) -> Iterator[NDArray[Any]]:
    """Yields the values as `dtype`, flat and in order, in blocks of bounded size.

    dtype: the tensor's own, or one of WEIGHT_DTYPES. Raises CheckpointError where a finite value
    does not fit its range, and for integers: quantised weights mean nothing without their scales.
    """
    if tensor.dtype != dtype and tensor.dtype not in (*WEIGHT_DTYPES, "float64"):
        raise CheckpointError(f"tensor {name!r} is {tensor.dtype}; expected a float dtype")
    for data in tensor.blocks():
        block = Tensor(data, tensor.dtype)
        if tensor.dtype == dtype:
            yield block.data
            continue
        values = to_float32(block)
        with np.errstate(over="ignore"):
            result = _to_bfloat16(values) if dtype == "bfloat16" else values.astype(PAYLOADS[dtype])
        source = block.data if tensor.dtype == "float64" else values
        lost = np.isfinite(source) & ~np.isfinite(to_float32(Tensor(result, dtype)))
        if lost.any():
            raise CheckpointError(
                f"tensor {name!r} holds {float(source[lost][0])}, which does not fit {dtype}"
            )
        yield result


def cast(tensor: Tensor, dtype: str, name: str) -> Tensor:
    """The tensor as `dtype`: see `cast_blocks`."""
    if tensor.dtype == dtype:
        return tensor
    data = np.empty(tensor.size, PAYLOADS[dtype])
    start = 0
    for block in cast_blocks(tensor, dtype, name):
        data[start : start + block.size] = block
        start += block.size
    return Tensor(data.reshape(tensor.shape), dtype)
