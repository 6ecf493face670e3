"""Tensors of a GGUF file, with the values made when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.formats.gguf.blocks import BlockType, decode
from packhorse_weights.formats.gguf.file import StoredTensor
from packhorse_weights.formats.gguf.groups import GROUPS
from packhorse_weights.quantization.grouped import Grouped, GroupedTensor, TransposedTensor
from packhorse_weights.tensor import BLOCK, PAYLOADS, FileBlocks, LazyTensor, Tensor

# Order of a tensor's rows in a file: the extents that their number is divided into, and the two of
# these axes that are to be exchanged.
Order = tuple[tuple[int, ...], tuple[int, int]]


class QuantizedTensor(GroupedTensor):
    """Values that are made of the blocks of a file, as float32 or in their groups.

    `kind` is that of the blocks, and `blocks` a view of the file, uint8 [rows, bytes of a row],
    whose rows lie in an `order`. The `shape` is that of the values.
    """

    __slots__ = ("_blocks", "_kind", "_order", "_rows")

    _kind: BlockType
    _blocks: NDArray[np.uint8]
    _order: Order | None
    _rows: NDArray[np.uint8]  # view of `_blocks` whose rows are in the order of the values

    def __init__(
        self,
        kind: BlockType,
        blocks: NDArray[np.uint8],
        shape: tuple[int, ...],
        order: Order | None = None,
    ) -> None:
        super().__init__(GROUPS[kind.name][0], self._whole, shape, (kind.name, blocks.size))
        rows = blocks
        if order is not None:
            rows = _reorder(blocks.reshape(shape[0], -1, blocks.shape[-1]), order)
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_blocks", blocks)
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_rows", rows)

    @property
    def file_blocks(self) -> FileBlocks | None:
        if len(self._shape) < 2:
            return None
        rows = len(self._blocks)
        order = None
        if self._order is not None:
            numbers = np.arange(rows, dtype=np.int32).reshape(self._shape[0], -1)
            order = np.ascontiguousarray(_reorder(numbers, self._order)).reshape(-1)
        return FileBlocks(self._kind.name, self._blocks, self._shape, order)

    def _whole(self) -> NDArray[np.float32]:
        return self._values(self._rows.reshape(-1, self._kind.size)).reshape(self._shape)

    def blocks(self) -> Iterator[NDArray[Any]]:
        blocks = self._rows.reshape(-1, self._kind.size)
        step = BLOCK // self._kind.elements
        for start in range(0, len(blocks), step):
            yield self._values(blocks[start : start + step]).reshape(-1)

    def rows(self, begin: int, end: int) -> Grouped:
        columns = self._shape[-1]
        per_row = columns // self._kind.elements
        blocks = self._rows.reshape(-1, self._kind.size)[begin * per_row : end * per_row]
        values, scales, minima = GROUPS[self._kind.name][1](blocks)
        count = end - begin
        return Grouped(
            values.reshape(count, columns),
            scales.reshape(count, -1),
            None if minima is None else minima.reshape(count, -1),
        )

    def _values(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        out = np.empty((len(blocks), self._kind.elements), np.float32)
        decode(self._kind, blocks, out)
        return out


def _reorder(data: NDArray[Any], order: Order) -> NDArray[Any]:
    extents, axes = order
    assert math.prod(extents) == data.shape[0]
    reordered: NDArray[Any] = data.reshape(*extents, *data.shape[1:]).swapaxes(*axes)
    return reordered


def open_tensor(stored: StoredTensor, order: Order | None = None) -> Tensor:
    """Returns a tensor of the file, its rows brought out of the `order` that they lie in."""
    kind, shape = stored.kind, stored.shape
    if kind.dtype is None:
        return QuantizedTensor(kind, stored.blocks, shape, order)
    data = np.frombuffer(stored.blocks.reshape(-1), PAYLOADS[kind.dtype]).reshape(shape)
    tensor = Tensor(data, kind.dtype)
    if order is None:
        return tensor
    view = _reorder(data, order)
    return LazyTensor(
        lambda: np.ascontiguousarray(view).reshape(shape), shape, kind.dtype, tensor.stored
    )


def transposed(matrix: Tensor) -> Tensor:
    """The matrix with its rows and columns exchanged."""
    if isinstance(matrix, GroupedTensor):
        return TransposedTensor(matrix)
    return LazyTensor(
        lambda: np.ascontiguousarray(matrix.data.T), matrix.shape[::-1], matrix.dtype, matrix.stored
    )
