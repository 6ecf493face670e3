"""An audio as windows of 30 seconds that know nothing of each other, so that all of them can be
decoded at once; and what they give, in the order of the audio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from packhorse.audio.decoding import SAMPLE_RATE, Samples
from packhorse.audio.features import FRAMES_PER_SECOND
from packhorse.audio.results import Segment
from packhorse.audio.running import News, run_all
from packhorse.audio.transcriber import Ask, Language, Progress, Results, Steps
from packhorse.audio.vad import Part
from packhorse.audio.voiced import Event, VoicedTimes

if TYPE_CHECKING:
    from packhorse.generation.session import GenerationSession


class Window(NamedTuple):
    """Samples that are decoded together, and where they begin among those of all windows."""

    samples: Samples
    begin: int


class Chunked(NamedTuple):
    """An audio cut into windows.

    windows  in their order, one at least
    decode   begins to transcribe a window's samples in a language, or in the one that is detected;
             the last argument is whether it is the first window
    times    brings times of the joined windows back to the audio; None: they are its own
    """

    windows: Sequence[Window]
    decode: Callable[[Samples, str | None, bool], Steps]
    times: VoicedTimes | None


def windows_of(samples: Samples, parts: Sequence[Part], longest: int) -> list[Window]:
    """Neighbouring parts put together as long as they have `longest` samples at most; a part that
    is longer is cut."""
    windows: list[Window] = []
    pieces: list[Samples] = []
    begin = size = 0
    for part in parts:
        for first in range(part.begin, part.end, longest):
            piece = samples[first : min(first + longest, part.end)]
            if size + piece.size > longest:
                windows.append(Window(np.concatenate(pieces), begin))
                begin += size
                pieces, size = [], 0
            pieces.append(piece)
            size += piece.size
    if pieces or not windows:
        last = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
        windows.append(Window(last, begin))
    return windows


class _Running:
    """An audio whose windows are decoded. What they give is held back until the windows before it
    are done."""

    def __init__(self, audio: Chunked) -> None:
        self._audio = audio
        self._language: Language | None = None
        self._segments = 0  # that were given
        self._frontier = 0  # windows before it are done
        self._held: list[deque[Event]] = [deque() for _ in audio.windows]
        self._done = [False] * len(audio.windows)

    def steps(self, number: int) -> Steps:
        """Decodings of a window."""
        window = self._audio.windows[number]
        if self._language is None and number > 0:
            # All windows that begin before the first one's language is known find it out
            # themselves; it is the same for all, and the cache has what the encoder makes of it.
            yield from self._detect()
        code = None if self._language is None else self._language.code
        offset = window.begin / SAMPLE_RATE
        frames = window.begin * FRAMES_PER_SECOND // SAMPLE_RATE
        for_window = self._audio.decode(window.samples, code, number == 0)
        event = next(for_window)
        try:
            while True:
                if isinstance(event, list):
                    event = for_window.send((yield event))
                    continue
                if isinstance(event, Segment):
                    yield _moved(event, offset, frames)
                elif isinstance(event, Progress):
                    yield Progress(offset + event.seconds)
                elif number == 0:
                    self._language = event
                    yield event
                event = next(for_window)
        except StopIteration:
            return
        finally:
            for_window.close()

    def _detect(self) -> Generator[list[Ask], Results, None]:
        steps = self._audio.decode(self._audio.windows[0].samples, None, True)
        try:
            event = next(steps)
            while isinstance(event, list):
                event = steps.send((yield event))
            assert isinstance(event, Language)
            self._language = event
        finally:
            steps.close()

    def take(self, number: int, event: Event | None) -> Iterator[Event | None]:
        """Gives what may be given now that a window has this event; None: it is done."""
        if event is None:
            self._done[number] = True
        else:
            self._held[number].append(event)
        while self._frontier < len(self._held):
            held = self._held[self._frontier]
            while held:
                yield self._numbered(held.popleft())
            if not self._done[self._frontier]:
                return
            self._frontier += 1
        yield None

    def _numbered(self, event: Event) -> Event:
        if isinstance(event, Segment):
            event = replace(event, id=self._segments)
            self._segments += 1
        return event if self._audio.times is None else self._audio.times.whole(event)


def _moved(segment: Segment, seconds: float, frames: int) -> Segment:
    words = segment.words
    if words is not None:
        words = tuple(
            replace(word, start=word.start + seconds, end=word.end + seconds) for word in words
        )
    start, end = segment.start + seconds, segment.end + seconds
    return replace(segment, start=start, end=end, seek=segment.seek + frames, words=words)


def run_chunked(
    session: GenerationSession, makers: Iterable[Callable[[], Chunked]], at_once: int
) -> Iterator[News]:
    """Runs the windows of the audios that `makers` make, up to `at_once` at the same time. Gives
    and raises as `run_all`; the number of an event is that of its audio."""
    places: list[tuple[int, _Running, int]] = []  # audio, and which window, of each that began

    def windows() -> Iterator[Callable[[], Steps]]:
        for number, make in enumerate(makers):
            audio = make()
            running = _Running(audio)
            for window in range(len(audio.windows)):
                places.append((number, running, window))
                yield partial(running.steps, window)

    for job, event in run_all(session, windows(), at_once):
        number, running, window = places[job]
        for one in running.take(window, event):
            yield News(number, one)
