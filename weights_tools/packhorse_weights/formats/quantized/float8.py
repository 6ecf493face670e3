"""Weights in e4m3 (float8: 4 bits of exponent, 3 of mantissa, up to 448), and folders of models
that hold them: those of compressed-tensors, and those whose config says `quant_method: fp8`.

Scales of activations that such folders may have are not read: sessions in float8 make their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.tensor import LazyTensor, Tensor, to_float32

FLOAT8 = "float8"
MOST = np.float32(448)
_LEAST = np.float32(2.0**-64)  # where all numbers of a row are smaller, they become zeros
_SCALES = ("weight_scale", "weight_scale_inv")  # both are what numbers are multiplied by
_OF_ACTIVATIONS = ("input_scale", "output_scale", "k_scale", "v_scale")
Bytes = NDArray[np.uint8]


def encode(values: NDArray[np.float32]) -> Bytes:
    """The bytes of the nearest numbers, ties to even; what is beyond 448 becomes 448."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    magnitude = np.minimum(bits & np.uint32(0x7FFFFFFF), np.float32(448).view(np.uint32))
    rebiased = magnitude - np.uint32(120 << 23)
    normal = (rebiased + 0x7FFFF + (rebiased >> 20 & 1)) >> 20
    # One unit in the last place of 2^14 is 2^-9, the smallest number: the addition rounds.
    tiny = (magnitude.view(np.float32) + np.float32(2.0**14)).view(np.uint32)
    small = tiny - np.float32(2.0**14).view(np.uint32)
    is_small = magnitude.view(np.float32) < np.float32(2.0**-6)
    found: Bytes = (np.where(is_small, small, normal) | bits >> 24 & 0x80).astype(np.uint8)
    return found


def quantize_rows(values: NDArray[np.float32]) -> tuple[Bytes, NDArray[np.float32]]:
    """The bytes [rows, columns] and scales [rows] that a session makes of a weight at load: scale =
    max |w| / 448 of the row."""
    most = np.maximum(np.abs(values).max(axis=1, initial=0), _LEAST).astype(np.float32)
    return encode(values * (MOST / most)[:, None]), most * np.float32(1 / MOST)


class Float8Tensor(LazyTensor):
    """A weight [out, in] in e4m3, as float32. `scales`: [out], where each row has one; None where
    blocks of columns have."""

    __slots__ = ("bytes", "scales")

    bytes: Bytes
    scales: NDArray[np.float32] | None

    def __init__(self, values: Tensor, scales: NDArray[np.float32], block: tuple[int, int]) -> None:
        rows, columns = values.shape

        def make() -> NDArray[np.float32]:
            wide = np.repeat(np.repeat(scales, block[0], 0)[:rows], block[1], 1)[:, :columns]
            return to_float32(values) * wide

        size = values.size + scales.nbytes
        super().__init__(make, (rows, columns), "float32", ("e4m3", size))
        per_row = np.repeat(scales[:, 0], block[0])[:rows] if scales.shape[1] == 1 else None
        object.__setattr__(self, "bytes", values.data)
        object.__setattr__(self, "scales", per_row)


def _block(fields: Config, name: str, shape: tuple[int, ...], scale: Tensor) -> tuple[int, int]:
    """Rows and columns that share a scale. Scales are a number, one for each row, or one for each
    block of the size in the config."""
    rows, columns = shape
    if scale.size == 1:
        return rows, columns
    if scale.shape in ((rows,), (rows, 1)):
        return 1, columns
    size = fields.fields.get("weight_block_size")
    match size:
        case [int(high), int(wide)] if high > 0 and wide > 0:
            if scale.shape == (math.ceil(rows / high), math.ceil(columns / wide)):
                return min(high, rows), min(wide, columns)
    raise CheckpointError(
        f"tensor '{name}' is {scale.describe()}; expected one number, one for each of {rows} rows, "
        f"or one for each block of weight_block_size = {size!r:.40}"
    )


def open_float8_layers(fields: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of such a folder, with weights in e4m3 and their scales in one (`Float8Tensor`).
    fields: what the folder says of how it is quantised.

    Raises CheckpointError for parts that do not fit together.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part in (*_SCALES, *_OF_ACTIVATIONS):
            continue
        if tensor.dtype != FLOAT8:
            found[name] = tensor
            continue
        scale_names = [f"{layer}.{end}" for end in _SCALES if f"{layer}.{end}" in tensors]
        if part != "weight" or len(tensor.shape) != 2 or not tensor.size or not scale_names:
            raise CheckpointError(
                f"tensor {name!r} is {tensor.describe()}; expected a matrix named .weight that is "
                "not empty, and its scales beside it, .weight_scale or .weight_scale_inv"
            )
        scale = tensors[scale_names[0]]
        block = _block(fields, scale_names[0], tensor.shape, scale)
        grid = tuple(math.ceil(size / of) for size, of in zip(tensor.shape, block, strict=True))
        scales = np.ascontiguousarray(to_float32(scale)).reshape(grid)
        if not np.isfinite(scales).all():
            raise CheckpointError(f"tensor {scale_names[0]!r} holds NaN or Inf")
        found[name] = Float8Tensor(tensor, scales, block)
    return found
