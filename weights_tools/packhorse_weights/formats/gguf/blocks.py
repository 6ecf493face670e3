"""Values in GGUF files: plain, or quantised in blocks with scales of their own.

A block holds `elements` values of one row in `size` bytes. Written from the layouts in ggml
(ggml-common.h, ggml-quants.c); every product and sum is rounded to float32 as there, so that the
values are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_PIECE = 1 << 16  # values that are decoded at a time, so that temporaries stay in the caches


class BlockType(NamedTuple):
    """One way to store values. A type of plain values has a `dtype`, as `tensor.PAYLOADS` names it.
    A quantised one has `decode`, which writes the values of blocks, uint8 [n, size], to float32
    [n, elements]."""

    name: str
    elements: int
    size: int
    dtype: str | None = None
    decode: Callable[[Bytes, Floats], None] | None = None


def half(blocks: Bytes, at: int) -> Floats:
    """Returns the float16 at this byte of each block, as float32 [n, 1]."""
    bits = np.ascontiguousarray(blocks[:, at : at + 2])
    return bits.view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, out: NDArray[Any]) -> None:
    """Splits packed [..., k] into out [..., 2, k]: the low halves of all bytes, then the high
    ones."""
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])


def _two_bits(packed: Bytes) -> Bytes:
    """Returns the pairs of bits in 64 bytes of each block, [n, 2, 4, 32] as the K types have it."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    pairs: Bytes = packed.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    return pairs


def fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Returns [n, 32] of 0 or 16 for the bits of a little-endian uint32 of each block."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return np.left_shift(bits, 4, out=bits)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), half(blocks, 0), out=out)


def small_values(blocks: Bytes, at: int) -> Bytes:
    """Returns [n, 32] values from 0 to 15, which stand in the 16 bytes from `at` on."""
    values = np.empty((len(blocks), 2, 16), np.uint8)
    _nibbles(blocks[:, at:], values)
    return values.reshape(len(blocks), 32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    np.subtract(small_values(blocks, 2), np.float32(8), out=out)
    np.multiply(out, half(blocks, 0), out=out)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    np.multiply(small_values(blocks, 4), half(blocks, 0), out=out)
    np.add(out, half(blocks, 2), out=out)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    values = small_values(blocks, 6)
    np.bitwise_or(values, fifth_bits(blocks, 2), out=values)
    np.subtract(values, np.float32(16), out=out)
    np.multiply(out, half(blocks, 0), out=out)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    values = small_values(blocks, 8)
    np.bitwise_or(values, fifth_bits(blocks, 4), out=values)
    np.multiply(values, half(blocks, 0), out=out)
    np.add(out, half(blocks, 2), out=out)


def scales_and_minima(blocks: Bytes) -> tuple[Floats, Floats]:
    """Returns the scales and the minima of the 8 sub-blocks of Q4_K and Q5_K, each [n, 8, 1].

    Each has six bits, and all of them stand in 12 bytes. Sub-blocks 0 to 3 have theirs in the low
    six bits of bytes 0 to 3 (scales) and 4 to 7 (minima). Sub-blocks 4 to 7 have their low four
    bits in bytes 8 to 11 (the scale in the low half, the minimum in the high half), and their upper
    two bits at the top of bytes 0 to 7.
    """
    packed = blocks[:, 4:16].reshape(-1, 3, 4)
    six = np.empty((len(blocks), 2, 8), np.uint8)
    six[:, :, :4] = packed[:, :2] & 63
    top = (packed[:, :2] >> 6) << 4
    six[:, 0, 4:] = (packed[:, 2] & 15) | top[:, 0]
    six[:, 1, 4:] = (packed[:, 2] >> 4) | top[:, 1]
    scales = six[:, 0] * half(blocks, 0)
    minima = six[:, 1] * half(blocks, 2)
    return scales[..., None], minima[..., None]


def _scale_sub_blocks(blocks: Bytes, values: Bytes, out: Floats) -> None:
    """Writes scale * value - minimum of each sub-block; values are [n, 8, 32]."""
    scales, minima = scales_and_minima(blocks)
    result = out.reshape(-1, 8, 32)
    np.multiply(values, scales, out=result)
    np.subtract(result, minima, out=result)


def values_of_q4_k(blocks: Bytes) -> Bytes:
    """Returns q, [n, 8, 32]."""
    values = np.empty((len(blocks), 4, 2, 32), np.uint8)
    _nibbles(blocks[:, 16:].reshape(-1, 4, 32), values)
    return values.reshape(-1, 8, 32)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    _scale_sub_blocks(blocks, values_of_q4_k(blocks), out)


def values_of_q5_k(blocks: Bytes) -> Bytes:
    """Returns q, [n, 8, 32]."""
    values = np.empty((len(blocks), 4, 2, 32), np.uint8)
    _nibbles(blocks[:, 48:].reshape(-1, 4, 32), values)
    whole = values.reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (blocks[:, 16:48].reshape(-1, 1, 32) >> shifts) & 1
    np.bitwise_or(whole, fifth << 4, out=whole)
    return whole


def _q5_k(blocks: Bytes, out: Floats) -> None:
    _scale_sub_blocks(blocks, values_of_q5_k(blocks), out)


def values_of_q6_k(blocks: Bytes) -> Bytes:
    """Returns q + 32, [n, 16, 16]."""
    n = len(blocks)
    values = np.empty((n, 2, 2, 64), np.uint8)
    _nibbles(blocks[:, :128].reshape(n, 2, 64), values)
    whole = values.reshape(n, 2, 4, 32)
    np.bitwise_or(whole, _two_bits(blocks[:, 128:192]) << 4, out=whole)
    return values.reshape(n, 16, 16)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    scales = blocks[:, 192:208].view(np.int8) * half(blocks, 208)
    result = out.reshape(len(blocks), 16, 16)
    np.subtract(values_of_q6_k(blocks), np.float32(32), out=result)
    np.multiply(result, scales[..., None], out=result)


def values_of_q2_k(blocks: Bytes) -> Bytes:
    """Returns q, [n, 16, 16]."""
    return _two_bits(blocks[:, 16:80]).reshape(-1, 16, 16)


def scales_and_minima_of_q2_k(blocks: Bytes) -> tuple[Floats, Floats]:
    """Returns the scales and the minima of the 16 sub-blocks, each [n, 16, 1]."""
    scales = (blocks[:, :16] & 15) * half(blocks, 80)
    minima = (blocks[:, :16] >> 4) * half(blocks, 82)
    return scales[..., None], minima[..., None]


def _q2_k(blocks: Bytes, out: Floats) -> None:
    scales, minima = scales_and_minima_of_q2_k(blocks)
    result = out.reshape(-1, 16, 16)
    np.multiply(values_of_q2_k(blocks), scales, out=result)
    np.subtract(result, minima, out=result)


def values_of_q3_k(blocks: Bytes) -> Bytes:
    """Returns q + 4, [n, 16, 16]."""
    shifts = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
    top: Bytes = blocks[:, :32].reshape(-1, 1, 1, 32) >> shifts & np.uint8(1)
    values: Bytes = _two_bits(blocks[:, 32:96]) | top << np.uint8(2)
    return values.reshape(-1, 16, 16)


def scales_of_q3_k(blocks: Bytes) -> Floats:
    """Returns the scales of the 16 sub-blocks, [n, 16].

    Each has six bits, less 32: the low four in the halves of bytes 0 to 7 of twelve, the upper two
    in the others, of which each has those of sub-blocks i, i + 4, i + 8 and i + 12.
    """
    six = np.empty((len(blocks), 2, 8), np.uint8)
    _nibbles(blocks[:, 96:104], six)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    top = (blocks[:, 104:108].reshape(-1, 1, 4) >> shifts) & 3
    whole = six.reshape(-1, 16) | top.reshape(-1, 16) << 4
    scales: Floats = (whole.astype(np.float32) - np.float32(32)) * half(blocks, 108)
    return scales


def _q3_k(blocks: Bytes, out: Floats) -> None:
    result = out.reshape(-1, 16, 16)
    np.subtract(values_of_q3_k(blocks), np.float32(4), out=result)
    np.multiply(result, scales_of_q3_k(blocks)[..., None], out=result)


# The types that are read, by their numbers in a file. All others are refused.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4, "float32"),
    1: BlockType("F16", 1, 2, "float16"),
    2: BlockType("Q4_0", 32, 18, decode=_q4_0),
    3: BlockType("Q4_1", 32, 20, decode=_q4_1),
    6: BlockType("Q5_0", 32, 22, decode=_q5_0),
    7: BlockType("Q5_1", 32, 24, decode=_q5_1),
    8: BlockType("Q8_0", 32, 34, decode=_q8_0),
    10: BlockType("Q2_K", 256, 84, decode=_q2_k),
    11: BlockType("Q3_K", 256, 110, decode=_q3_k),
    12: BlockType("Q4_K", 256, 144, decode=_q4_k),
    13: BlockType("Q5_K", 256, 176, decode=_q5_k),
    14: BlockType("Q6_K", 256, 210, decode=_q6_k),
    30: BlockType("BF16", 1, 2, "bfloat16"),
}
# Types that are refused, so that the message can name them.
NAMES_OF_TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


def decode(kind: BlockType, blocks: Bytes, out: Floats) -> None:
    """Writes the values of quantised blocks, uint8 [n, size], to `out`, float32 [n, elements]."""
    assert kind.decode is not None
    step = _PIECE // kind.elements
    with np.errstate(over="ignore", invalid="ignore"):  # scales may be anything
        for begin in range(0, len(blocks), step):
            kind.decode(blocks[begin : begin + step], out[begin : begin + step])
