"""Parts of an audio in which somebody speaks, of the probabilities of speech that a network gives
for each 32 ms (voice activity detection, VAD)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from packhorse.audio.decoding import SAMPLE_RATE
from packhorse.number_checks import is_number

CHUNK = 512  # samples of a probability
_SHORT_SILENCE = 98 * SAMPLE_RATE / 1000  # samples; a part that is too long may end in a longer one


class Part(NamedTuple):
    """Samples from `begin` on, up to `end`."""

    begin: int
    end: int


@dataclass(frozen=True)
class VadOptions:
    """Thresholds and lengths of speech, under the names and with the defaults of faster-whisper.

    threshold               probability from which a chunk of 32 ms is speech
    neg_threshold           probability below which speech may end; None: threshold - 0.15, at least
                            0.01
    min_speech_duration_ms  parts must be longer than that
    max_speech_duration_s   longer parts are cut: in their last silence of 98 ms, if there is one
    min_silence_duration_ms a part ends where it is silent for so long
    speech_pad_ms           so much is added before and behind each part, where there is room

    Raises ValueError that names the option, what was found and what was expected.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: float = 0
    max_speech_duration_s: float = math.inf
    min_silence_duration_ms: float = 2000
    speech_pad_ms: float = 400

    @classmethod
    def of(cls, given: VadOptions | Mapping[str, Any] | None, **defaults: Any) -> VadOptions:
        """Options as they are given: `defaults` hold where they are no VadOptions. Raises
        ValueError."""
        if isinstance(given, VadOptions):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(
                f"vad_parameters is {given!r:.80}, expected VadOptions or its fields, or None"
            )
        known = [one.name for one in fields(cls)]
        for name in given or ():
            if name not in known:
                raise ValueError(
                    f"vad_parameters has no {name!r:.80}, expected one of {', '.join(known)}"
                )
        return cls(**{**defaults, **(given or {})})

    def __post_init__(self) -> None:
        for name in ("threshold", "neg_threshold"):
            value = getattr(self, name)
            if value is None and name == "neg_threshold":
                continue
            if not is_number(value) or not 0 <= value <= 1:
                raise ValueError(f"{name} is {value!r:.80}, expected a probability from 0 to 1")
        for name in ("min_speech_duration_ms", "min_silence_duration_ms", "speech_pad_ms"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= 1e9:
                raise ValueError(f"{name} is {value!r:.80}, expected milliseconds from 0 on")
        longest, least = self.max_speech_duration_s, 2 * self.speech_pad_ms / 1000 + 1
        if not (is_number(longest) or longest == math.inf) or longest < least:
            raise ValueError(
                f"max_speech_duration_s is {longest!r:.80}, expected {least:g} seconds at least: "
                "one, and what speech_pad_ms adds"
            )


def speech_parts(probabilities: Sequence[float], samples: int, options: VadOptions) -> list[Part]:
    """Parts of an audio of so many samples in which somebody speaks, in their order.

    probabilities: of speech, one for each CHUNK samples. They are those of faster-whisper's
    get_speech_timestamps, which follows Silero's (github.com/snakers4/silero-vad).
    """
    return _padded(_spoken(probabilities, samples, options), samples, options)


def _spoken(probabilities: Sequence[float], samples: int, options: VadOptions) -> list[Part]:
    low = options.neg_threshold
    if low is None:
        low = max(options.threshold - 0.15, 0.01)
    shortest = SAMPLE_RATE * options.min_speech_duration_ms / 1000
    pad = SAMPLE_RATE * options.speech_pad_ms / 1000
    longest = SAMPLE_RATE * options.max_speech_duration_s - CHUNK - 2 * pad
    pause = SAMPLE_RATE * options.min_silence_duration_ms / 1000
    parts: list[Part] = []
    begin: int | None = None  # the part that goes on
    quiet = 0  # where a silence began that may become its end
    cut, resumed = 0, 0  # its last silence of some length, and where speech went on after it
    for number, probability in enumerate(probabilities):
        place = CHUNK * number
        loud = probability >= options.threshold
        if loud and quiet:
            quiet = 0
            if resumed < cut:
                resumed = place
        if begin is None:
            if loud:
                begin = place
            continue
        if place - begin > longest:
            if not cut:
                parts.append(Part(begin, place))
                begin = None
                quiet = resumed = 0
                continue
            parts.append(Part(begin, cut))
            begin = None if resumed < cut else resumed
            quiet = cut = resumed = 0
        if probability < low and begin is not None:
            quiet = quiet or place
            if place - quiet > _SHORT_SILENCE:
                cut = quiet
            if place - quiet >= pause:
                if quiet - begin > shortest:
                    parts.append(Part(begin, quiet))
                begin = None
                quiet = cut = resumed = 0
    if begin is not None and samples - begin > shortest:
        parts.append(Part(begin, samples))
    return parts


def _padded(parts: list[Part], samples: int, options: VadOptions) -> list[Part]:
    """The parts with what is added around each: half of a silence that is too short for both."""
    pad = SAMPLE_RATE * options.speech_pad_ms / 1000
    begins = [part.begin for part in parts]
    ends = [part.end for part in parts]
    for number, end in enumerate(ends):
        if number == 0:
            begins[0] = int(max(0, begins[0] - pad))
        if number == len(parts) - 1:
            ends[number] = int(min(samples, end + pad))
            continue
        silence = begins[number + 1] - end
        room = pad if silence >= 2 * pad else silence // 2
        ends[number] = int(min(samples, end + room))
        begins[number + 1] = int(max(0, begins[number + 1] - room))
    return [Part(begin, end) for begin, end in zip(begins, ends, strict=True)]
