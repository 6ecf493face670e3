"""The tokens of a text as arrays: a fraction of what the package tokenizers keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packhorse.packing import Int32Array

if TYPE_CHECKING:
    from tokenizers import Encoding


class TokenArrays(NamedTuple):
    """The tokens of a text or pair, special tokens included; each array is int32[tokens].

    parts         0: of the text, or the first of a pair; 1: of the second; -1: a special token
    words         number of the word that a token belongs to, in its part; -1: of none
    begins, ends  characters of its part that it stands for
    """

    ids: Int32Array
    type_ids: Int32Array
    parts: Int32Array
    words: Int32Array
    begins: Int32Array
    ends: Int32Array

    def take(self, which: Any) -> TokenArrays:
        """The tokens that an index of NumPy chooses."""
        return TokenArrays(*(array[which] for array in self))


def numbers(values: Sequence[int]) -> Int32Array:
    """The array. Raises ValueError for ids or types that the files of a tokenizer make too
    large."""
    try:
        return np.array(values, np.int32)
    except OverflowError:
        most = np.iinfo(np.int32).max
        raise ValueError(
            f"the tokenizer's files give a token the id or type {max(values)}, expected at most "
            f"{most}"
        ) from None


def _or_none(values: Sequence[int | None]) -> Int32Array:
    return np.array([-1 if value is None else value for value in values], np.int32)


def parts_of(encoding: Encoding) -> Int32Array:
    """`TokenArrays.parts` alone."""
    return _or_none(encoding.sequence_ids)


def arrays_of(encoding: Encoding) -> TokenArrays:
    offsets: npt.NDArray[np.int32] = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    return TokenArrays(
        numbers(encoding.ids),
        numbers(encoding.type_ids),
        parts_of(encoding),
        _or_none(encoding.word_ids),
        np.ascontiguousarray(offsets[:, 0]),
        np.ascontiguousarray(offsets[:, 1]),
    )


def join(rows: Sequence[TokenArrays]) -> TokenArrays:
    return TokenArrays(*map(np.concatenate, zip(*rows, strict=True)))
