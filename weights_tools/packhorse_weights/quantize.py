"""Quantises weights to int8: the dense layers of the blocks, with a scale for each output
feature."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from packhorse_weights.errors import CheckpointError
from packhorse_weights.layout import TRANSPOSED
from packhorse_weights.tensor import WEIGHT_DTYPES, Tensor, to_float32

QUANTIZED_DTYPES = ("int8",)
SCALE_SUFFIX = "_scale"  # appended to the tensor's name
_MOST = 127  # -128 is not used, so that the range is symmetric


def is_quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is quantised. Embeddings, norms, biases, all layers before and after the
    blocks, and those that choose an expert are not; experts are when they are loaded."""
    return name.startswith("layers.") and len(shape) == 2 and ".router." not in name


def quantize_weight(tensor: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Returns int8 q [out, in] and float32 scales [out]: scale = max |w| / 127 of the row, q = w /
    scale.

    q is rounded to nearest, ties to even, as the runtime does when it quantises at load. Raises
    CheckpointError if the tensor does not hold floats, or is not finite.
    """
    if tensor.dtype not in (*WEIGHT_DTYPES, "float64"):
        raise CheckpointError(f"tensor {name!r} is {tensor.dtype}; expected a float dtype")
    values = to_float32(tensor)
    most = np.abs(values).max(axis=1, initial=0)
    if not math.isfinite(float(most.sum(dtype=np.float64))):
        raise CheckpointError(f"tensor {name!r} holds NaN or Inf, which int8 cannot hold")
    scales = (most / np.float32(_MOST)).astype(np.float32)
    divisors = np.where(scales > 0, scales, np.float32(np.inf))  # rows of zeros stay zeros
    quantized = np.clip(np.rint(values / divisors[:, None]), -_MOST, _MOST)
    return Tensor(quantized.astype(np.int8), "int8"), Tensor(scales, "float32")


def quantize_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a model, by our names, with those that are to be quantised replaced by
    int8 tensors and scales."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(TRANSPOSED):  # a scale is of an output feature
            name = name.removesuffix(TRANSPOSED) + ".weight"
            tensor = Tensor(tensor.data.T, tensor.dtype)
        if is_quantizable(name, tensor.shape):
            result[name], result[name + SCALE_SUFFIX] = quantize_weight(tensor, name)
        else:
            result[name] = tensor
    return result
