"""A text longer than the model takes, read in windows that overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.tokenization.token_arrays import TokenArrays
from packhorse.text.tokenization.tokenizer import TextTokenizer


class Window(NamedTuple):
    tokens: TokenArrays
    own: slice  # those tokens that are of the text that is read in windows


class Windows:
    """The windows in which one call reads texts: up to `max_length` tokens that share `stride`
    tokens."""

    def __init__(self, tokenizer: TextTokenizer, max_length: int, stride: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._stride = stride

    def split(
        self, tokens: TokenArrays, part: int, name: str, most: int | None = None
    ) -> list[Window]:
        """Windows of one text (part 0), or of the second of a pair (1) after the first, in the
        order of the package tokenizers: from the side that is kept where texts are cut. Raises
        ValueError for more than `most`."""
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
            range(0, max(count - self._stride, 1), room - self._stride)
            if count > room
            else range(1)
        )
        if most is not None and len(starts) > most:
            raise ValueError(
                f"{name}: {count} tokens make {len(starts)} windows of {room} that share "
                f"{self._stride}, at most {most} are taken"
            )
        windows = []
        for first in starts:
            last = min(first + room, count)
            if self._tokenizer.side == "left":
                first, last = count - last, count - first
            kept = np.r_[:begin, begin + first : begin + last, end : len(tokens.ids)]
            taken = tokens.take(kept)
            if first:
                taken = self._tokenizer.with_first_space(taken, int(begin))
            windows.append(Window(taken, slice(begin, begin + last - first)))
        return windows


def prepare_windows(
    runner: TextRunner, windows: Windows, texts: Sequence[Text], first: int, part: int
) -> tuple[Request, list[list[Window]]]:
    """A request for the logits of all windows of `texts`, and the windows of each text; `part` is
    as of `Windows.split`."""
    read = runner.read(texts, first, pairs=part == 1)
    found: list[list[Window]] = []
    left = runner.most_windows
    for i, tokens in enumerate(read, first):
        found.append(windows.split(tokens, part, f"texts[{i}]", left))
        left = None if left is None else left - len(found[-1])
    flat = [window.tokens for own in found for window in own]
    ids, types = [tokens.ids for tokens in flat], [tokens.type_ids for tokens in flat]
    return runner.request(ids, types, "logits"), found


def logits_by_text(
    windows: Sequence[Sequence[object]], result: RunResult
) -> list[list[FloatArray]]:
    """Logits [tokens, labels] of each window of each text."""
    rows = iter(np.split(result.logits, result.cu_seqlens[1:-1]))
    return [[next(rows) for _ in own] for own in windows]
