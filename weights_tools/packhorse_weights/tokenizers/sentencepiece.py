"""Reads SentencePiece models (tokenizer.model, spiece.model, ...) without the package of that name.

Such a file is one Protocol Buffers message. Only the few fields that say how text becomes pieces
are read. Sources: sentencepiece_model.proto of SentencePiece, and "Encoding" in the documentation
of Protocol Buffers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import read_bytes
from packhorse_weights.tokenizers.charsmap import check_charsmap

# The kinds of pieces and of models that matter here.
CONTROL, USER_DEFINED = 3, 4
UNIGRAM, BPE = 1, 2

Value = int | bytes
_FLOAT = struct.Struct("<f")
_MAX_PIECES = 1 << 21
_MAX_PIECE = 512  # in characters; SentencePiece's default limit is 16


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


@dataclass
class SentencePieces:
    """A SentencePiece model. `pieces` are in the order of ids; `charsmap` holds compiled rules of
    normalisation, and is empty if there are none. `first_space`: a text begins with a space.
    `few_spaces`: others around it are dropped, and several in it become one."""

    pieces: list[Piece] = field(default_factory=list)
    model_type: int = UNIGRAM
    unk_id: int = 0
    unk_piece: str = "<unk>"
    charsmap: bytes = b""
    first_space: bool = True
    few_spaces: bool = True


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a varint. Returns its value and the position after it."""
    value = data[at]  # read_sentencepiece handles the IndexError
    if value < 0x80:
        return value, at + 1
    value = 0
    for i in range(10):
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError("a number of more than ten bytes")


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yields (number, value) of the fields of a message: ints for varints, bytes for everything
    else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        sizes = {1: 8, 5: 4}
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in sizes:
            size = sizes[kind]
        else:
            raise ValueError(f"a field of kind {kind}")
        if size > len(data) - at:
            raise ValueError("a field that ends behind its message")
        yield tag >> 3, data[at : at + size]
        at += size


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes were expected")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int) or value >= 1 << 31:
        raise ValueError("an id or kind that is no number from 0 to 2147483647")
    return value


def _piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, 1
    size = len(data) - 7
    # Nearly all of a quarter of a million pieces are written like this: a short text and a score,
    # nothing more.
    if 0 < size < 0x80 and data[:2] == bytes((0x0A, size)) and data[size + 2] == 0x15:
        text = data[2 : size + 2].decode("utf-8")
        (score,) = _FLOAT.unpack_from(data, size + 3)
    else:
        for number, value in _fields(data):
            if number == 1:
                text = _bytes(value).decode("utf-8")
            elif number == 2:
                (score,) = _FLOAT.unpack(_bytes(value))
            elif number == 3:
                kind = _number(value)
    if not 0 < len(text) <= _MAX_PIECE or not math.isfinite(score):
        raise ValueError(f"the piece {text!r:.40} of {len(text)} characters, score {score}")
    return Piece(text, score, kind)


def _read_trainer(data: bytes, result: SentencePieces) -> None:
    for number, value in _fields(data):
        if number == 3:
            result.model_type = _number(value)
        elif number == 40:
            result.unk_id = _number(value)
        elif number == 45:
            result.unk_piece = _bytes(value).decode("utf-8")


def _read_normalizer(data: bytes, result: SentencePieces) -> None:
    for number, value in _fields(data):
        if number == 2:
            result.charsmap = _bytes(value)
        elif number == 3:
            result.first_space = _number(value) != 0
        elif number == 4:
            result.few_spaces = _number(value) != 0
    if result.charsmap:
        check_charsmap(result.charsmap)


def read_sentencepiece(path: Path) -> SentencePieces:
    """Reads a model. Raises CheckpointError if the file is not such a model, or its kind is neither
    unigram nor BPE."""
    data = read_bytes(path)
    result = SentencePieces()
    try:
        for number, value in _fields(data):
            if number == 1:
                result.pieces.append(_piece(_bytes(value)))
                if len(result.pieces) > _MAX_PIECES:
                    raise ValueError(f"more than {_MAX_PIECES} pieces")
            elif number == 2:
                _read_trainer(_bytes(value), result)
            elif number == 3:
                _read_normalizer(_bytes(value), result)
    except (ValueError, IndexError, struct.error) as error:
        raise CheckpointError(f"{path}: not a SentencePiece model: {error!s:.120}") from None
    if not result.pieces or result.unk_id >= len(result.pieces):
        raise CheckpointError(
            f"{path}: not a SentencePiece model: {len(result.pieces)} pieces, of which the unknown "
            f"one has the id {result.unk_id}"
        )
    if result.model_type not in (UNIGRAM, BPE):
        raise CheckpointError(
            f"{path}: SentencePiece model of type {result.model_type}; expected 1 (unigram) or 2 "
            "(BPE)"
        )
    return result
