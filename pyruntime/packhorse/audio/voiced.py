"""Times of an audio whose silences were left out, and where they are in the whole audio."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packhorse.audio.decoding import SAMPLE_RATE, Samples
from packhorse.audio.features import FRAMES_PER_SECOND
from packhorse.audio.results import Segment
from packhorse.audio.transcriber import Language, Progress, Steps
from packhorse.audio.vad import Part

Event = Segment | Language | Progress
HOP = SAMPLE_RATE // FRAMES_PER_SECOND  # samples from frame to frame
_DIGITS = 2  # behind the point of seconds


def joined(samples: Samples, parts: Sequence[Part]) -> Samples:
    """The parts of an audio, one behind the other."""
    pieces = [samples[part.begin : part.end] for part in parts]
    return np.concatenate(pieces) if pieces else np.empty(0, np.float32)


class VoicedTimes:
    """Brings times of the joined parts back to the whole audio, as faster-whisper does.

    seconds: of the whole audio
    """

    def __init__(self, parts: Sequence[Part], seconds: float) -> None:
        self._seconds = seconds
        self._ends: list[int] = []  # where parts end, in joined samples
        self._skipped: list[float] = []  # seconds that are left out before each part
        skipped = before = 0
        for part in parts:
            skipped += part.begin - before
            before = part.end
            self._ends.append(part.end - skipped)
            self._skipped.append(skipped / SAMPLE_RATE)

    def _part(self, time: float, is_end: bool = False) -> int:
        # Where one part ends and the next begins, a time may be either.
        find = bisect.bisect_left if is_end else bisect.bisect_right
        return min(find(self._ends, int(time * SAMPLE_RATE)), len(self._ends) - 1)

    def _at(self, time: float, part: int) -> float:
        return round(self._skipped[part] + time, _DIGITS)

    def whole(self, event: Event) -> Event:
        """The event with times of the whole audio. A word begins and ends in the part in which its
        middle is, and a segment has the times of its words, if there are any."""
        if isinstance(event, Progress):
            # Silence behind the last part is done with it.
            if not self._ends or event.seconds * SAMPLE_RATE > self._ends[-1] - HOP:
                return Progress(self._seconds)
            return Progress(self._at(event.seconds, self._part(event.seconds, is_end=True)))
        if isinstance(event, Segment):
            if not event.words:
                start = self._at(event.start, self._part(event.start))
                end = self._at(event.end, self._part(event.end, is_end=True))
                return replace(event, start=start, end=end)
            words = []
            for word in event.words:
                part = self._part((word.start + word.end) / 2)
                start, end = self._at(word.start, part), self._at(word.end, part)
                words.append(replace(word, start=start, end=end))
            return replace(event, start=words[0].start, end=words[-1].end, words=tuple(words))
        return event


def with_whole_times(steps: Steps, times: VoicedTimes) -> Steps:
    """Gives what `steps` gives, with times of the whole audio."""
    try:
        event = next(steps)
        while True:
            if isinstance(event, list):
                event = steps.send((yield event))
            else:
                yield times.whole(event)
                event = next(steps)
    except StopIteration:
        return
    finally:
        steps.close()
