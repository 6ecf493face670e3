"""The algorithm of openai-whisper at temperature 0, over a NumPy model in float64, written for
reading: one window at a time, one hypothesis at a time."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from reference_text_to_text import hidden_of_audio, speech_logits

Array = Any


class Names(NamedTuple):
    """Tokens of the tiny model (tests/golden/make_speech_golden.py)."""

    end: int = 256
    start: int = 257
    languages: tuple[int, ...] = (258, 259, 260)
    translate: int = 261
    transcribe: int = 262
    start_of_lm: int = 263
    start_of_previous: int = 264
    no_speech: int = 265
    no_timestamps: int = 266
    first_time: int = 267


TOKENS = Names()
WINDOW, CONTEXT = 100, 60


def log_softmax(x: Array) -> Array:
    largest = x.max()
    return x - largest - np.log(np.exp(x - largest).sum())


class ReferenceWhisper:
    def __init__(self, spec: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self._spec, self._tensors = spec, tensors
        self._read: Array = None

    def hear(self, frames: Array) -> None:
        self._read = hidden_of_audio(self._spec, self._tensors, frames)

    def logits(self, ids: list[int]) -> Array:
        return speech_logits(self._spec, self._tensors, self._read, np.array(ids))[-1]

    def language(self) -> int:
        return max(TOKENS.languages, key=lambda token: self.logits([TOKENS.start])[token])

    def no_speech(self, prompt: list[int]) -> float:
        before = prompt[: prompt.index(TOKENS.start) + 1]
        return float(np.exp(log_softmax(self.logits(before))[TOKENS.no_speech]))

    def filtered(
        self,
        prompt: list[int],
        new: list[int],
        suppress: list[int],
        most_initial: int | None,
        blank: int,
        begun: list[int],
    ) -> Array:
        """begun: tokens of the window that were given before the new ones."""
        scores = self.logits([*prompt, *begun, *new]).copy()
        if not new:
            scores[[blank, TOKENS.end]] = -np.inf
        scores[suppress] = -np.inf
        new = [*begun, *new]
        begin = TOKENS.first_time
        scores[TOKENS.no_timestamps] = -np.inf
        last = bool(new) and new[-1] >= begin
        before_last = len(new) < 2 or new[-2] >= begin
        if last and before_last:
            scores[begin:] = -np.inf
        elif last:
            scores[: TOKENS.end] = -np.inf
        times = [token for token in new if token >= begin]
        if times:
            least = times[-1] if last and not before_last else times[-1] + 1
            scores[begin:least] = -np.inf
        if not new:
            scores[:begin] = -np.inf
            if most_initial is not None:
                scores[begin + most_initial + 1 :] = -np.inf
        logprobs = log_softmax(scores)
        together = np.logaddexp.reduce(logprobs[begin:])
        if together > logprobs[:begin].max():
            scores[:begin] = -np.inf
        return log_softmax(scores)

    def beams(
        self, prompt: list[int], count: int, patience: float, most: int, **rules: Any
    ) -> tuple[list[int], float]:
        """(tokens without the end, sum of log-probabilities)"""
        live: list[tuple[list[int], float]] = [([], 0.0)]
        finished: list[tuple[list[int], float]] = []
        wanted = round(count * patience)
        for _ in range(most):
            candidates = []
            for ids, total in live:
                logprobs = self.filtered(prompt, ids, **rules)
                for token in np.argsort(-logprobs, kind="stable")[: count + 1]:
                    candidates.append(([*ids, int(token)], total + logprobs[token]))
            candidates.sort(key=lambda one: -one[1])
            live, ended = [], []
            for candidate in candidates:
                if candidate[0][-1] == TOKENS.end:
                    ended.append(candidate)
                else:
                    live.append(candidate)
                if len(live) == count:
                    break
            finished += ended[: max(0, wanted - len(finished))]
            if len(finished) >= wanted:
                break
        if len(finished) < count:
            finished += live[: count - len(finished)]
        whole = [([t for t in ids if t != TOKENS.end], total) for ids, total in finished]
        return max(whole, key=lambda one: one[1] / max(1, len(one[0])))

    def transcribe(
        self, features: Array, encode: Any, decode: Any, *, beam_size: int, patience: float = 1.0,
        initial_prompt: str | None = None, condition: bool = True, suppress: list[int],
        most_initial: int | None, thresholds: tuple[float | None, float | None] = (0.6, -1.0),
        clips: tuple[float, ...] = (), prefix: str = "",
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Segments. `features`: frames of the whole audio."""
        frames, seek, forgotten = len(features), 0, 0
        written: list[int] = encode(" " + initial_prompt.strip()) if initial_prompt else []
        found: list[dict[str, Any]] = []
        first = np.zeros((WINDOW, features.shape[1]))
        first[: min(WINDOW, frames)] = features[:WINDOW]
        self.hear(first)
        language = self.language()
        points = [round(100 * one) for one in clips] or [0]
        points += [frames] if len(points) % 2 else []
        for begin, end in zip(points[::2], points[1::2], strict=True):
            seek = begin
            while seek < min(end, frames):
                size = min(WINDOW, frames - seek, end - seek)
                heard = np.zeros((WINDOW, features.shape[1]))
                heard[:size] = features[seek : seek + size]
                self.hear(heard)
                previous = written[forgotten:][-(CONTEXT // 2 - 1) :]
                prompt = [TOKENS.start_of_previous, *previous] if previous else []
                prompt += [TOKENS.start, language, TOKENS.transcribe]
                begun = [TOKENS.first_time, *encode(f" {prefix}")] if prefix and seek == 0 else []
                rules = {
                    "begun": begun, "suppress": suppress, "most_initial": most_initial,
                    "blank": encode(" ")[0],
                }  # fmt: skip
                most = min(CONTEXT // 2, CONTEXT - len(prompt) - len(begun))
                tokens, total = self.beams(prompt, beam_size, patience, most, **rules)
                average = total / (len(tokens) + 1)
                tokens = [*begun, *tokens]
                silence = self.no_speech(prompt)
                limit, least = thresholds
                if (
                    limit is not None
                    and silence > limit
                    and not (least is not None and average > least)
                ):
                    seek += size
                    continue
                begin_time = TOKENS.first_time
                cuts = [
                    i for i in range(1, len(tokens))
                    if tokens[i] >= begin_time and tokens[i - 1] >= begin_time
                ]  # fmt: skip
                single = len(tokens) > 1 and tokens[-2] < begin_time <= tokens[-1]
                pieces, advance = [], size
                if cuts:
                    cuts += [len(tokens)] if single else []
                    for low, high in zip([0, *cuts], cuts, strict=False):
                        part = tokens[low:high]
                        times = [seek / 100 + 0.02 * (part[i] - begin_time) for i in (0, -1)]
                        pieces.append((*times, part))
                    if not single:
                        advance = 2 * (tokens[cuts[-1] - 1] - begin_time)
                else:
                    said = [token for token in tokens if token >= begin_time]
                    duration = size / 100
                    if said and said[-1] != begin_time:
                        duration = 0.02 * (said[-1] - begin_time)
                    pieces.append((seek / 100, seek / 100 + duration, tokens))
                text = decode([t for t in tokens if t < TOKENS.end]).strip()
                ratio = len(text.encode()) / len(zlib.compress(text.encode()))
                for start, stop, part in pieces:
                    words = decode([t for t in part if t < TOKENS.end])
                    if start == stop or not words.strip():
                        continue
                    written += part
                    found.append({"start": start, "end": stop, "tokens": tuple(part), "text": words,
                                  "avg_logprob": average, "no_speech_prob": silence, "seek": seek,
                                  "compression_ratio": ratio})  # fmt: skip
                if not condition:
                    forgotten = len(written)
                seek += advance or size
        return found
