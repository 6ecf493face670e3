"""Tensors of a GGUF file, with the values made when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.gguf_blocks import BlockType, decode
from packhorse_weights.gguf_file import StoredTensor
from packhorse_weights.tensor import BLOCK, PAYLOADS, Tensor


class QuantizedTensor(Tensor):
    """Values that are made of the blocks of a file each time they are asked for, as float32.

    kind: of blocks. blocks: uint8 [..., bytes of a row], a view of the file. shape: of the values.
    """

    __slots__ = ("_kind", "_rows", "_shape")

    _kind: BlockType
    _rows: NDArray[np.uint8]
    _shape: tuple[int, ...]

    def __init__(self, kind: BlockType, rows: NDArray[np.uint8], shape: tuple[int, ...]) -> None:
        object.__setattr__(self, "dtype", "float32")
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_shape", shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def stored(self) -> tuple[str, int]:
        return self._kind.name, self._rows.size

    @property
    def data(self) -> NDArray[Any]:  # type: ignore[override]
        return self._values(self._rows.reshape(-1, self._kind.size)).reshape(self._shape)

    def blocks(self) -> Iterator[NDArray[Any]]:
        blocks = self._rows.reshape(-1, self._kind.size)
        step = BLOCK // self._kind.elements
        for start in range(0, len(blocks), step):
            yield self._values(blocks[start : start + step]).reshape(-1)

    def _values(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        out = np.empty((len(blocks), self._kind.elements), np.float32)
        decode(self._kind, blocks, out)
        return out


class TransposedTensor(Tensor):
    """A matrix of a file with its rows and columns exchanged."""

    __slots__ = ("_matrix",)

    _matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        object.__setattr__(self, "dtype", matrix.dtype)
        object.__setattr__(self, "_matrix", matrix)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._matrix.shape[::-1]

    @property
    def stored(self) -> tuple[str, int]:
        return self._matrix.stored

    @property
    def data(self) -> NDArray[Any]:  # type: ignore[override]
        return self._matrix.data.T


# How rows of a tensor lie in a file: what their number is divided into, and the two axes that are
# to be exchanged.
Order = tuple[tuple[int, ...], tuple[int, int]]


def open_tensor(stored: StoredTensor, order: Order | None = None) -> Tensor:
    """The tensor as a view of the file. Its outermost dimension is brought into another `order`."""
    kind, shape = stored.kind, stored.shape
    if kind.dtype is not None:
        data = np.frombuffer(stored.blocks.reshape(-1), PAYLOADS[kind.dtype]).reshape(shape)
        return Tensor(data if order is None else _reorder(data, order).reshape(shape), kind.dtype)
    rows = stored.blocks
    if order is not None:
        rows = _reorder(rows.reshape(shape[0], -1, rows.shape[-1]), order)
    return QuantizedTensor(kind, rows, shape)


def _reorder(data: NDArray[Any], order: Order) -> NDArray[Any]:
    extents, axes = order
    assert math.prod(extents) == data.shape[0]
    return data.reshape(*extents, *data.shape[1:]).swapaxes(*axes)
