"""Quantises weights to int8 or float8: the dense layers of the blocks, with a scale for each output
feature."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.quantized.float8 import FLOAT8, Float8Tensor, quantize_rows
from packhorse_weights.layout import TRANSPOSED
from packhorse_weights.tensor import WEIGHT_DTYPES, Tensor, to_float32

# Value of the argument `quantize` -> dtype of the tensors.
QUANTIZED_DTYPES = {"int8": "int8", "fp8": FLOAT8}
SCALE_SUFFIX = "_scale"  # appended to the tensor's name
# Names of tensors of blocks; those of several stacks begin with the name of their own.
_OF_BLOCK = re.compile(r"(?:\w+\.)?layers\.\d")
_MOST = 127  # -128 is not used, so that the range is symmetric


def is_quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """True if a tensor is quantised. Embeddings, norms, biases, tables of scores, all layers before
    and after the blocks, and those that choose an expert are not; experts are when they are
    loaded."""
    of_block = _OF_BLOCK.match(name) is not None and ".router." not in name
    return of_block and len(shape) == 2 and name.endswith((".weight", TRANSPOSED))


def quantize_weight(tensor: Tensor, name: str, dtype: str = "int8") -> tuple[Tensor, Tensor]:
    """Returns q [out, in] and float32 scales [out]: scale = max |w| / 127 of the row, or / 448 in
    float8, q = w / scale.

    q is rounded to nearest, ties to even, as the runtime does when it quantises at load. Raises
    CheckpointError if the tensor does not hold floats, or is not finite.
    """
    if tensor.dtype not in (*WEIGHT_DTYPES, "float64"):
        raise CheckpointError(f"tensor {name!r} is {tensor.dtype}; expected a float dtype")
    values = to_float32(tensor)
    most = np.abs(values).max(axis=1, initial=0)
    if not math.isfinite(float(most.sum(dtype=np.float64))):
        raise CheckpointError(f"tensor {name!r} holds NaN or Inf, which {dtype} cannot hold")
    if dtype == FLOAT8:
        numbers, scales = quantize_rows(values)
        return Tensor(numbers, FLOAT8), Tensor(scales, "float32")
    scales = (most / np.float32(_MOST)).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(np.inf))  # rows of zeros stay zeros
    quantized = np.clip(np.rint(values / divisors[:, None]), -_MOST, _MOST)
    return Tensor(quantized.astype(np.int8), "int8"), Tensor(scales, "float32")


def quantize_tensors(tensors: Mapping[str, Tensor], dtype: str = "int8") -> dict[str, Tensor]:
    """Returns the tensors of a model, by our names, with those that are to be quantised replaced by
    tensors of `dtype` and scales."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(TRANSPOSED):  # a scale is of an output feature
            name = name.removesuffix(TRANSPOSED) + ".weight"
            tensor = Tensor(tensor.data.T, tensor.dtype)
        if is_quantizable(name, tensor.shape):
            result[name], result[name + SCALE_SUFFIX] = quantize_weight(tensor, name, dtype)
        else:
            result[name] = tensor
    return result


def float8_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The tensors of a model, by our names, with the layers of blocks as they are stored: e4m3 and
    scales of rows. None if not all of them are."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not is_quantizable(name, tensor.shape):
            found[name] = tensor
        elif isinstance(tensor, Float8Tensor) and tensor.scales is not None:
            found[name] = Tensor(tensor.bytes, FLOAT8)
            found[name + SCALE_SUFFIX] = Tensor(tensor.scales, "float32")
        else:
            return None
    return found
