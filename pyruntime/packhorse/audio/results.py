"""Results of transcription."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Word:
    """A word with the space before it. start, end: seconds. probability: mean of its tokens'."""

    word: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class Segment:
    """A part of the text with its times.

    id                 its number, from 0 on
    start, end         seconds from the beginning of the audio
    text               with the space before it
    tokens             tokens of text and time
    avg_logprob        mean log-probability of the tokens of its window, their end included
    no_speech_prob     probability that there is no speech in its window
    compression_ratio  bytes of the window's text by their number when deflated: high where words
                       repeat
    temperature        that its window was decoded with
    seek               frame (hundredth of a second) at which its window begins
    words              with their times, where they were asked for
    """

    id: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    seek: int
    words: tuple[Word, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Its fields as JSON takes them; `words` where there are any."""
        found = asdict(self)
        found["tokens"] = list(self.tokens)
        if self.words is None:
            del found["words"]
        else:
            found["words"] = [asdict(word) for word in self.words]
        return found


@dataclass(frozen=True)
class Transcription:
    """All of an audio.

    text                  of all segments
    language              code, such as "en": as asked for, or detected
    language_probability  of the detected one; 1 where it was asked for
    duration              seconds of the audio
    """

    text: str
    segments: tuple[Segment, ...]
    language: str
    language_probability: float
    duration: float
