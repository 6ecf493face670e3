"""Dense layers whose values are small whole numbers with scales and zero points, as the tools of
several formats store them: word_packed.py and compressed_tensors.py read the formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.errors import CheckpointError
from packhorse_weights.quantization.grouped import (
    Bytes,
    Grouped,
    GroupedTensor,
    GroupFormat,
    Order,
    pack_rows,
)
from packhorse_weights.tensor import LazyTensor, Tensor

# The groups in which the one scale of a row is repeated.
_WHOLE_ROW = 128
_SMALLEST_GROUP = {4: 32, 8: 16}  # bits of a value -> the smallest group


class Layer(NamedTuple):
    """A value stands for scale * (q - zero)."""

    values: Bytes  # q, [in, out]
    scales: NDArray[np.float32]  # [groups, out]
    zeros: NDArray[np.float32]  # [groups, out]


class Layout(NamedTuple):
    """Form of a quantised layer. group: input features with one scale; None: all. groups: how many
    there are. group_of: the group of each input feature; None: neighbours have a group."""

    shape: tuple[int, int]  # [out, in]
    bits: int
    symmetric: bool
    group: int | None
    groups: int
    group_of: NDArray[np.integer] | None = None


def unpack(words: NDArray[np.int32], bits: int) -> Bytes:
    """The values in the words of a matrix, [rows, columns * 32 / bits], from the lowest bits up."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = words.view(np.uint32)[..., None] >> shifts & np.uint32((1 << bits) - 1)
    found: Bytes = values.astype(np.uint8).reshape(len(words), -1)
    return found


def is_kept(bits: int, group: int | None) -> bool:
    """Tells whether the runtime has groups of this size."""
    return group is None or (group >= _SMALLEST_GROUP[bits] and group & (group - 1) == 0)


class _LayerTensor(GroupedTensor):
    """A layer [out, in], its groups of features that are neighbours in `input_order`."""

    __slots__ = ("_read",)

    _read: Callable[[], Layer]

    def __init__(
        self,
        form: GroupFormat,
        read: Callable[[], Layer],
        shape: tuple[int, int],
        stored: tuple[str, int],
        input_order: Order | None,
    ) -> None:
        super().__init__(form, self._floats, shape, stored, input_order)
        object.__setattr__(self, "_read", read)

    def _floats(self) -> NDArray[np.float32]:
        layer = self._read()
        size = self.form.size if len(layer.scales) > 1 else self.shape[1]
        group_of = np.arange(self.shape[1]) // size
        if self.input_order is not None:
            group_of[self.input_order] = group_of.copy()
        return _dequantize(layer, group_of)

    def packed(self, name: str) -> Bytes:
        layer = self._read()
        scales, zeros = layer.scales, layer.zeros
        if len(scales) == 1:
            scales, zeros = (
                np.repeat(one, self.form.groups(self.shape[1]), axis=0) for one in (scales, zeros)
            )
        middle = 1 << (self.form.bits - 1)
        if not self.form.minima and (zeros != middle).any():
            raise CheckpointError(
                f"tensor {name!r} has the zero point {int(zeros[zeros != middle][0])}, but the "
                f"config says sym = true; expected {middle}"
            )
        minima = -(scales * zeros).T if self.form.minima else None
        values = layer.values if self.input_order is None else layer.values[self.input_order]
        return pack_rows(self.form, Grouped(values.T, scales.T, minima), name)


def _dequantize(layer: Layer, group_of: NDArray[np.integer]) -> NDArray[np.float32]:
    """The floats [out, in]; group_of: of each input feature."""
    values = (layer.values.astype(np.float32) - layer.zeros[group_of]) * layer.scales[group_of]
    return np.ascontiguousarray(values.T)


def layer_tensor(
    name: str, layout: Layout, read: Callable[[], Layer], stored: tuple[str, int]
) -> Tensor:
    """A layer that stays quantised where the runtime has its groups, and is read as floats
    otherwise. name: of what gives `group_of`, for messages."""
    columns = layout.shape[1]
    in_runs = np.arange(columns) // (layout.group or columns)
    group_of = in_runs if layout.group_of is None else layout.group_of
    if ((group_of < 0) | (group_of >= layout.groups)).any():
        raise CheckpointError(f"tensor {name!r} names a group beyond the {layout.groups} there are")
    order: Order | None = None
    if (group_of != in_runs).any():
        # Sorting the features so makes those of a group neighbours.
        order = np.argsort(group_of, kind="stable").astype(np.int32)
    regular = order is None or (group_of[order] == in_runs).all()
    if not regular or not is_kept(layout.bits, layout.group):
        return LazyTensor(lambda: _dequantize(read(), group_of), layout.shape, "float32", stored)
    form = GroupFormat(layout.bits, layout.group or _WHOLE_ROW, not layout.symmetric)
    return _LayerTensor(form, read, layout.shape, stored, order)
