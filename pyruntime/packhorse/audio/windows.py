"""Windows of 30 seconds: what their tokens say about segments, and where the next one begins
(Radford et al. 2022, arXiv 2212.04356, section 4.5; openai-whisper)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from packhorse.audio.features import FRAMES_PER_SECOND
from packhorse.audio.results import Word
from packhorse.audio.tokens import SECONDS_PER_STEP

FRAMES_PER_STEP = round(SECONDS_PER_STEP * FRAMES_PER_SECOND)  # a step of tokens of time


@dataclass
class Piece:
    """A segment that is still being made: seconds, tokens, and words where they were asked for."""

    start: float
    end: float
    tokens: list[int]
    words: tuple[Word, ...] = ()


class Split(NamedTuple):
    """pieces: segments of a window. advance: frames to the next window. ends_in_silence: there is
    no speech behind the last time."""

    pieces: list[Piece]
    advance: int
    ends_in_silence: bool


def compression_ratio(text: str) -> float:
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def split_window(tokens: Sequence[int], first_time: int, offset: float, frames: int) -> Split:
    """Segments of the window that begins at `offset` seconds and has so many frames.

    Segments end where two tokens of time stand together. What follows the last of these is left to
    the next window, unless the window ends with a single one, behind which there is no speech.
    """
    times = [token >= first_time for token in tokens]
    single = len(tokens) > 1 and times[-1] and not times[-2]
    cuts = [i for i in range(1, len(tokens)) if times[i] and times[i - 1]]

    def seconds(token: int) -> float:
        return offset + (token - first_time) * SECONDS_PER_STEP

    if not cuts:
        # One segment, to its last time, if that is not the window's beginning.
        said = [token for token, is_time in zip(tokens, times, strict=True) if is_time]
        end = offset + frames / FRAMES_PER_SECOND
        if said and said[-1] != first_time:
            end = seconds(said[-1])
        return Split([Piece(offset, end, list(tokens))], frames, single)
    if single:
        cuts.append(len(tokens))
    pieces = [
        Piece(seconds(tokens[begin]), seconds(tokens[end - 1]), list(tokens[begin:end]))
        for begin, end in zip([0, *cuts], cuts, strict=False)
    ]
    advance = frames if single else (tokens[cuts[-1] - 1] - first_time) * FRAMES_PER_STEP
    return Split(pieces, advance, single)


def clips_of(timestamps: Sequence[float], frames: int) -> list[tuple[int, int]]:
    """Frames at which the parts begin and end that are asked for."""
    points = [round(one * FRAMES_PER_SECOND) for one in timestamps] or [0]
    if len(points) % 2 == 1:
        points.append(frames)
    return [(begin, min(end, frames)) for begin, end in zip(points[::2], points[1::2], strict=True)]
