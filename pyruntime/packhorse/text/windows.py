"""A text longer than the model takes, read in windows that overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packhorse.text.token_arrays import TokenArrays

if TYPE_CHECKING:
    from packhorse.text.tokenizer import TextTokenizer

_SPACE = "\u0120"  # as byte-level tokenizers write it


class Window(NamedTuple):
    tokens: TokenArrays
    own: slice  # which of them are of the text that is read in windows


class Windows:
    """How one call reads texts: windows of up to `max_length` tokens that share `stride` tokens."""

    def __init__(self, tokenizer: TextTokenizer, max_length: int, stride: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._stride = stride
        self._untrimmed = tokenizer.keeps_first_space

    def split(self, tokens: TokenArrays, part: int, name: str) -> list[Window]:
        """Windows of one text (part 0), or of the second of a pair (1) after the first, in the
        order of the package tokenizers: from the side that is kept where texts are cut."""
        places = np.flatnonzero(tokens.parts == part)
        begin, end = (places[0], places[-1] + 1) if places.size else (len(tokens.ids),) * 2
        around = len(tokens.ids) - (end - begin)
        room = self._max_length - around
        count = end - begin
        if count > room and room <= self._stride:
            what = "the question has {} tokens with special ones" if part else "{} special tokens"
            raise ValueError(
                f"{name}: {what.format(around)}; at max_length {self._max_length} no room is left "
                f"for windows that share {self._stride} tokens"
            )
        starts = (
            range(0, max(count - self._stride, 1), room - self._stride) if count > room else [0]
        )
        windows = []
        for first in starts:
            last = min(first + room, count)
            if self._tokenizer.side == "left":
                first, last = count - last, count - first
            kept = np.r_[:begin, begin + first : begin + last, end : len(tokens.ids)]
            window = Window(tokens.take(kept), slice(begin, begin + last - first))
            windows.append(self._with_first_space(window) if first else window)
        return windows

    def _with_first_space(self, window: Window) -> Window:
        """With the space before its first word, where the tokenizer counts it as that word's."""
        tokens, first = window.tokens, window.own.start
        token = self._tokenizer.token_of(int(tokens.ids[first]))
        if not self._untrimmed or not token.startswith(_SPACE):
            return window
        begins, ends = tokens.begins.copy(), tokens.ends.copy()
        begins[first] -= 1
        if not token.strip(_SPACE):
            ends[first] -= 1
        return window._replace(tokens=tokens._replace(begins=begins, ends=ends))
