"""Quantises weights to 4 or 8 bits with a scale for each group of input features: the dense layers
of the blocks and, in 8 bits, the matrix of the head of a language model that generates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.errors import CheckpointError
from packhorse_weights.layout import TRANSPOSED
from packhorse_weights.quantization.grouped import (
    Grouped,
    GroupedTensor,
    GroupFormat,
    TransposedTensor,
)
from packhorse_weights.quantization.per_channel import is_quantizable
from packhorse_weights.quantization.stored import DECODER
from packhorse_weights.spec import Spec, word_table
from packhorse_weights.tensor import WEIGHT_DTYPES, Tensor, to_float32

GROUP_SIZES = (32, 64, 128)
# Parts of a group's range that are tried, since rounding all values better may be worth it that the
# outermost are cut off.
_SHARES = (1.0, 0.97, 0.94, 0.91, 0.88, 0.84, 0.8)


class _Fit(NamedTuple):
    values: NDArray[np.float32]
    scales: NDArray[np.float32]
    minima: NDArray[np.float32]
    error: NDArray[np.float32]  # [rows, groups]


def _half(values: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _fit(
    groups: NDArray[np.float32], there: NDArray[np.bool_], form: GroupFormat, share: float
) -> _Fit:
    """Rounds [rows, groups, size] to values of which the outermost cover this share of a range.
    there: [groups, size], which of them count."""
    most = (1 << form.bits) - 1
    if form.minima:
        low, high = groups.min(axis=2), groups.max(axis=2)
        middle = (low + high) / 2
        low, high = middle + (low - middle) * share, middle + (high - middle) * share
        scales, minima = _half((high - low) / most), _half(low)
    else:
        middle_value = np.float32(1 << (form.bits - 1))
        scales = _half(np.abs(groups).max(axis=2) * np.float32(share) / (middle_value - 1))
        minima = -middle_value * scales
    divisors = np.where(scales > 0, scales, np.float32(np.inf))
    values = np.clip(np.rint((groups - minima[..., None]) / divisors[..., None]), 0, most)
    if not form.minima:
        values[scales == 0] = 1 << (form.bits - 1)
    rounded = values * scales[..., None] + minima[..., None]
    error = np.where(there, np.square(rounded - groups), np.float32(0)).sum(axis=2)
    return _Fit(values, scales, minima, error)


class RoundedTensor(GroupedTensor):
    """A matrix of floats [out, in] that is rounded to a form. `data` are the floats themselves.

    Of a group's range that part is used with which the squared errors are smallest.
    """

    __slots__ = ("_matrix", "_name")

    _matrix: Tensor
    _name: str

    def __init__(self, form: GroupFormat, matrix: Tensor, name: str) -> None:
        if matrix.dtype not in (*WEIGHT_DTYPES, "float64"):
            raise CheckpointError(f"tensor {name!r} is {matrix.dtype}; expected a float dtype")
        super().__init__(form, lambda: to_float32(matrix), matrix.shape, matrix.stored)
        object.__setattr__(self, "_matrix", matrix)
        object.__setattr__(self, "_name", name)

    def rows(self, begin: int, end: int) -> Grouped:
        data = self._matrix.data[begin:end]
        floats = to_float32(Tensor(data, self._matrix.dtype))
        if not math.isfinite(float(np.abs(floats).max(initial=0))):
            raise CheckpointError(
                f"tensor {self._name!r} holds NaN or Inf, which {self.form.bits} bits cannot hold"
            )
        columns = floats.shape[1]
        missing = self.form.groups(columns) * self.form.size - columns
        # The last value is repeated, which changes no range.
        padded = np.pad(floats, ((0, 0), (0, missing)), mode="edge") if missing else floats
        groups = padded.reshape(len(floats), -1, self.form.size)
        there = (np.arange(padded.shape[1]) < columns).reshape(groups.shape[1:])
        best = _fit(groups, there, self.form, _SHARES[0])
        for share in _SHARES[1:] if self.form.bits == 4 else ():
            other = _fit(groups, there, self.form, share)
            better = other.error < best.error
            best = _Fit(
                np.where(better[..., None], other.values, best.values),
                *(np.where(better, *pair) for pair in zip(other[1:], best[1:], strict=True)),
            )
        values = best.values.astype(np.uint8).reshape(len(floats), -1)[:, :columns]
        return Grouped(values, best.scales, best.minima if self.form.minima else None)


def quantize_in_groups(
    spec: Spec, tensors: Mapping[str, Tensor], bits: int, size: int
) -> dict[str, Tensor]:
    """The tensors of a model, by our names, with `RoundedTensor`s in place of those that are to be
    quantised, as `stored.stored_tensors` takes them. Of 4 bits groups have minima, of 8 not."""
    form = GroupFormat(bits, size, bits == 4)
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not is_quantizable(name, tensor.shape):
            result[name] = tensor
        elif name.endswith(TRANSPOSED):
            matrix = Tensor(np.ascontiguousarray(tensor.data.T), tensor.dtype)
            result[name] = TransposedTensor(RoundedTensor(form, matrix, name))
        else:
            result[name] = RoundedTensor(form, tensor, name)
    if "lm" in spec.get("heads", {}):
        decoder = f"{DECODER}.weight"
        table = tensors[decoder if decoder in tensors else word_table(spec)]
        result[decoder] = RoundedTensor(GroupFormat(8, size, False), table, decoder)
    return result
