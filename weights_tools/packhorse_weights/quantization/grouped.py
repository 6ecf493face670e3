"""Matrices that are quantised in groups of input features, in the form that the runtime keeps them
in (docs/weights.md#weights-that-stay-quantised)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.errors import CheckpointError
from packhorse_weights.tensor import LazyTensor

Bytes = NDArray[np.uint8]
Order = NDArray[np.int32]
_PIECE = 1 << 22  # values that are brought into this form at a time


class GroupFormat(NamedTuple):
    """A value is scale * (q - 2^(bits - 1)), or with `minima` scale * q + minimum. `size`
    neighbouring input features have one scale and minimum; the last group may have fewer."""

    bits: int  # 4 or 8
    size: int
    minima: bool

    def groups(self, columns: int) -> int:
        """The number of groups in a row."""
        return -(-columns // self.size)

    def value_bytes(self, columns: int) -> int:
        """The bytes of a row's values; scales and minima follow them."""
        return -(-columns // 2) if self.bits == 4 else columns

    def row_bytes(self, columns: int) -> int:
        return self.value_bytes(columns) + 2 * self.groups(columns) * (1 + self.minima)


class Grouped(NamedTuple):
    """Rows of a matrix: q uint8 [rows, columns], and float16 or float32 [rows, groups]."""

    values: Bytes
    scales: NDArray[np.floating]
    minima: NDArray[np.floating] | None


def pack_rows(form: GroupFormat, rows: Grouped, name: str) -> Bytes:
    """Returns uint8 [rows, bytes of a row]: the values, of 4 bits two in a byte with the even
    column in the low half, then scales, then minima, as float16. Raises CheckpointError where one
    of these does not fit it."""
    values = rows.values
    if form.bits == 4:
        if values.shape[1] % 2:
            values = np.pad(values, ((0, 0), (0, 1)))
        values = values[:, ::2] | values[:, 1::2] << np.uint8(4)
    parts = [values]
    for numbers in (rows.scales, rows.minima)[: 1 + form.minima]:
        assert numbers is not None
        with np.errstate(over="ignore"):
            half = numbers.astype("<f2")
        if not np.isfinite(half).all():
            found = float(numbers[~np.isfinite(half)][0])
            raise CheckpointError(
                f"tensor {name!r} has a group with the scale or minimum {found}, which does not "
                "fit float16; load the model with dtype float32"
            )
        parts.append(np.ascontiguousarray(half).view(np.uint8))
    return np.concatenate(parts, axis=1)


def unpack_rows(form: GroupFormat, packed: Bytes, columns: int) -> NDArray[np.float32]:
    """The values that packed rows stand for, float32 [rows, columns]."""
    bytes_of_values, groups = form.value_bytes(columns), form.groups(columns)
    values = packed[:, :bytes_of_values]
    if form.bits == 4:
        values = np.stack((values & 15, values >> 4), axis=2).reshape(len(packed), -1)[:, :columns]
    halves = np.ascontiguousarray(packed[:, bytes_of_values:]).view("<f2").astype(np.float32)
    of_column = np.arange(columns) // form.size
    scales = halves[:, of_column]
    if form.minima:
        floats: NDArray[np.float32] = values * scales + halves[:, groups + of_column]
    else:
        floats = (values.astype(np.float32) - np.float32(1 << (form.bits - 1))) * scales
    return floats


class GroupedTensor(LazyTensor):
    """A matrix [out, in] that is quantised in groups. `data` are its values as floats; `packed` are
    its rows as `pack_rows` makes them.

    input_order: None where groups are of neighbouring input features. Otherwise int32 [in], each
    feature once: column j of `packed` is column input_order[j] of `data`.
    """

    __slots__ = ("form", "input_order")

    form: GroupFormat
    input_order: Order | None

    def __init__(
        self,
        form: GroupFormat,
        make: Callable[[], NDArray[np.float32]],
        shape: tuple[int, ...],
        stored: tuple[str, int],
        input_order: Order | None = None,
    ) -> None:
        super().__init__(make, shape, "float32", stored)
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "input_order", input_order)

    def rows(self, begin: int, end: int) -> Grouped:
        """Rows [begin, end) of the matrix."""
        raise NotImplementedError

    def packed(self, name: str) -> Bytes:
        """Made each time, and not kept. `name` is for messages."""
        count, columns = self.shape
        out = np.empty((count, self.form.row_bytes(columns)), np.uint8)
        step = max(1, _PIECE // columns)
        for begin in range(0, count, step):
            end = min(begin + step, count)
            out[begin:end] = pack_rows(self.form, self.rows(begin, end), name)
        return out


class PackedTensor(GroupedTensor):
    """A matrix whose rows a file holds in this form already: `tensor` is uint8 [rows, bytes of a
    row]."""

    __slots__ = ("_packed",)

    _packed: Bytes

    def __init__(
        self, form: GroupFormat, packed: Bytes, columns: int, input_order: Order | None = None
    ) -> None:
        shape = (len(packed), columns)
        kind = f"int{form.bits}, groups of {form.size}"
        super().__init__(form, self._floats, shape, (kind, packed.size), input_order)
        object.__setattr__(self, "_packed", packed)

    def _floats(self) -> NDArray[np.float32]:
        values = unpack_rows(self.form, self._packed, self.shape[1])
        if self.input_order is None:
            return values
        floats = np.empty_like(values)
        floats[:, self.input_order] = values
        return floats

    def packed(self, name: str) -> Bytes:
        return np.ascontiguousarray(self._packed)


class TransposedTensor(LazyTensor):
    """A matrix of floats [in, out] that is the transpose of a quantised one."""

    __slots__ = ("matrix",)

    matrix: GroupedTensor

    def __init__(self, matrix: GroupedTensor) -> None:
        def make() -> NDArray[np.float32]:
            return np.ascontiguousarray(matrix.data.T)

        super().__init__(make, matrix.shape[::-1], matrix.dtype, matrix.stored)
        object.__setattr__(self, "matrix", matrix)
