"""Resampling of images in NumPy: float64 weights, integer sums, one axis after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def _sinc(x: float) -> float:
    return 1.0 if x == 0 else math.sin(math.pi * x) / (math.pi * x)


def _cubic(x: float) -> float:
    x = abs(x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2 else 0.0


_HAMMING = [float(np.float32(x)) for x in (0.54, 0.46)]  # as Pillow has them

# The value of each filter, and half of its width.
FILTERS: dict[str, tuple[Any, float]] = {
    "box": (lambda x: float(-0.5 < x <= 0.5), 0.5),
    "bilinear": (lambda x: max(0.0, 1 - abs(x)), 1.0),
    "hamming": (
        lambda x: _sinc(x) * (_HAMMING[0] + _HAMMING[1] * math.cos(math.pi * x)) * (abs(x) < 1),
        1.0,
    ),
    "bicubic": (_cubic, 2.0),
    "lanczos": (lambda x: _sinc(x) * _sinc(x / 3) if -3 <= x < 3 else 0.0, 3.0),
}
TORCHVISION = ("nearest", "bilinear", "bicubic", "lanczos")


def _matrix(size: int, to: int, name: str) -> npt.NDArray[np.float64]:
    """[to, size]: the weights of every output, which add up to 1."""
    value, support = FILTERS[name]
    scale = size / to
    stretch = max(scale, 1.0)
    weights = np.zeros((to, size))
    for i in range(to):
        center = (i + 0.5) * scale
        first = max(int(center - support * stretch + 0.5), 0)
        end = min(int(center + support * stretch + 0.5), size)
        row = [value((x - center + 0.5) * (1 / stretch)) for x in range(first, end)]
        total = sum(row)
        weights[i, first:end] = [weight / total for weight in row] if total else row
    return weights


def _bits(weights: npt.NDArray[np.float64], backend: str) -> int:
    if backend == "pil":
        return 22
    bits = 0
    while bits < 22 and int(0.5 + weights.max() * 2 ** (bits + 1)) < 2**15:
        bits += 1
    return bits


def _along_rows(image: Bytes, to: int, name: str, backend: str) -> Bytes:
    """[height, width, channels] resampled to `to` rows."""
    if image.shape[0] == to:
        return image
    weights = _matrix(image.shape[0], to, name)
    bits = _bits(weights, backend)
    fixed = np.trunc(weights * 2.0**bits + np.where(weights < 0, -0.5, 0.5)).astype(np.int64)
    flat = image.reshape(image.shape[0], -1).astype(np.int64)
    sums = (fixed @ flat + (1 << bits >> 1)) >> bits
    return np.clip(sums, 0, 255).astype(np.uint8).reshape(to, *image.shape[1:])


def _along_columns(image: Bytes, to: int, name: str, backend: str) -> Bytes:
    return _along_rows(image.swapaxes(0, 1), to, name, backend).swapaxes(0, 1)


def _nearest(size: int, to: int, backend: str, small: bool) -> npt.NDArray[np.int64]:
    if backend == "torchvision":
        scale = np.float64(np.float32(size) / np.float32(to))
        places = ((np.arange(to) + 0.5) * scale).astype(np.float32)
        if not small:  # a fused multiplication and addition, then another addition
            places = np.maximum((np.arange(to) + 0.5) * scale - 0.5, 0).astype(np.float32)
            places += np.float32(0.5)
    else:  # repeated sums
        places = np.cumsum(np.r_[0.5 * (size / to), np.full(to - 1, size / to)])
    return np.minimum(places.astype(np.int64), size - 1)


def resized(image: Bytes, size: tuple[int, int], name: str, backend: str) -> Bytes:
    """Resizes uint8 [height, width, channels] as Pillow 13, or torchvision on CPUs, does."""
    height, width = image.shape[:2]
    if (height, width) == size:
        return image
    if name == "nearest":
        small = sum(size) <= 128
        rows = _nearest(height, size[0], backend, small)
        columns = _nearest(width, size[1], backend, small)
        return image[rows][:, columns]
    shrinks = height > size[0] and height - size[0] > 2 * (width - size[1])
    if backend == "pil" and shrinks:
        return _along_columns(_along_rows(image, size[0], name, backend), size[1], name, backend)
    return _along_rows(_along_columns(image, size[1], name, backend), size[0], name, backend)
