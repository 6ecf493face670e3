"""Blocks of GGUF files as weights that stay quantised: q, scale and minimum of each group.

Scales and minima are exact but for those of the K types. These are products of two numbers, which
`grouped.pack_rows` rounds to float16. Groups of 16, and values of five and six bits, are kept in
eight bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.formats.gguf.blocks import (
    Bytes,
    Floats,
    fifth_bits,
    half,
    scales_and_minima,
    scales_and_minima_of_q2_k,
    scales_of_q3_k,
    small_values,
    values_of_q2_k,
    values_of_q3_k,
    values_of_q4_k,
    values_of_q5_k,
    values_of_q6_k,
)
from packhorse_weights.quantization.grouped import GroupFormat

Parts = tuple[NDArray[Any], Floats, Floats | None]  # q [n, elements], scales, minima [n, groups]


def _q8_0(blocks: Bytes) -> Parts:
    return blocks[:, 2:] ^ 0x80, half(blocks, 0), None


def _q4_0(blocks: Bytes) -> Parts:
    return small_values(blocks, 2), half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Parts:
    return small_values(blocks, 4), half(blocks, 0), half(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    values = small_values(blocks, 6) | fifth_bits(blocks, 2)
    return values + np.uint8(128 - 16), half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Parts:
    return small_values(blocks, 8) | fifth_bits(blocks, 4), half(blocks, 0), half(blocks, 2)


def _with_minima(values: Bytes, scales: Floats, minima: Floats) -> Parts:
    return values.reshape(len(values), -1), scales[..., 0], -minima[..., 0]


def _q2_k(blocks: Bytes) -> Parts:
    return _with_minima(values_of_q2_k(blocks), *scales_and_minima_of_q2_k(blocks))


def _q3_k(blocks: Bytes) -> Parts:
    values = values_of_q3_k(blocks).reshape(len(blocks), -1)
    return values + np.uint8(128 - 4), scales_of_q3_k(blocks), None


def _q4_k(blocks: Bytes) -> Parts:
    return _with_minima(values_of_q4_k(blocks), *scales_and_minima(blocks))


def _q5_k(blocks: Bytes) -> Parts:
    return _with_minima(values_of_q5_k(blocks), *scales_and_minima(blocks))


def _q6_k(blocks: Bytes) -> Parts:
    scales = blocks[:, 192:208].view(np.int8) * half(blocks, 208)
    values = values_of_q6_k(blocks).reshape(len(blocks), -1)
    return values + np.uint8(128 - 32), scales, None


# Keys are those of `blocks.BLOCK_TYPES`.
GROUPS: dict[str, tuple[GroupFormat, Callable[[Bytes], Parts]]] = {
    "Q4_0": (GroupFormat(4, 32, False), _q4_0),
    "Q4_1": (GroupFormat(4, 32, True), _q4_1),
    "Q5_0": (GroupFormat(8, 32, False), _q5_0),
    "Q5_1": (GroupFormat(8, 32, True), _q5_1),
    "Q8_0": (GroupFormat(8, 32, False), _q8_0),
    "Q2_K": (GroupFormat(8, 16, True), _q2_k),
    "Q3_K": (GroupFormat(8, 16, False), _q3_k),
    "Q4_K": (GroupFormat(4, 32, True), _q4_k),
    "Q5_K": (GroupFormat(8, 32, True), _q5_k),
    "Q6_K": (GroupFormat(8, 16, False), _q6_k),
}
