"""One audio on its way to text: openai-whisper's algorithm, window after window.

It is a generator that asks for decodings and gets their results, so that those of many audios can
run side by side: each sees its own results alone, whatever else runs.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from packhorse.audio.features import FRAMES_PER_SECOND
from packhorse.audio.options import TranscribeOptions
from packhorse.audio.results import Segment
from packhorse.audio.tokens import SpeechTokens
from packhorse.audio.windows import Split, clips_of, compression_ratio, split_window
from packhorse.audio.words import WordTimer, drop_hallucinations, end_of, leading_silence
from packhorse.generation.results import GeneratedTokens
from packhorse.generation.sampling import Sampling
from packhorse.result import FloatArray

_MOST_LANGUAGES = 128  # probabilities that one request can tell


class Ask(NamedTuple):
    """A decoding: of what the encoder makes of `frames`, after the tokens of `prompt`."""

    prompt: list[int]
    sampling: Sampling
    frames: FloatArray


class Language(NamedTuple):
    code: str
    probability: float


class Progress(NamedTuple):
    """So many seconds of the audio are done."""

    seconds: float


# Output of the generator: results of transcription, or decodings, whose results it is sent.
Event = list[Ask] | Language | Segment | Progress
Results = list[list[GeneratedTokens]]
Steps = Generator[Event, Results, None]


@dataclass(frozen=True)
class Decoded:
    """A window's tokens, without the one that ends them, and what they are worth."""

    tokens: list[int]
    text: str
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float


class Transcriber:
    """The algorithm for one audio.

    features: frames of the whole audio [frames, mels]. window: frames that the encoder reads.
    context: positions of the decoder. heads: (layer, head) of cross attention that follow the
    audio, where words are timed.
    """

    def __init__(
        self,
        features: FloatArray,
        tokens: SpeechTokens,
        options: TranscribeOptions,
        window: int,
        context: int,
        heads: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._features, self._tokens, self._options = features, tokens, options
        self._window, self._context = window, context
        self._half = context // 2
        self._written: list[int] = []  # tokens of prompts and segments so far
        self._forgotten = 0  # so many of them stand before no window any more
        self._language = options.language
        suppressed = options.suppress_tokens
        self._suppressed = tokens.suppressed(() if suppressed is None else suppressed)
        self._timer: WordTimer | None = None
        if options.word_timestamps:
            marks = options.prepend_punctuations, options.append_punctuations
            self._timer = WordTimer(tokens, heads, *marks, context)
        self._blanks = [*tokens.encode(" ")[:1], tokens.end]

    def run(self) -> Steps:
        """Gives decodings to be made, and gets their results; and what there is of the text."""
        frames = self._features.shape[0]
        yield from self._detect()
        prompt = self._options.initial_prompt
        if isinstance(prompt, str):
            self._written += self._tokens.encode(f" {prompt.strip()}")
        elif prompt is not None:
            self._written += prompt
        number = 0
        for begin, end in clips_of(self._options.clip_timestamps, frames):
            seek = begin
            while seek < end:
                size = min(self._window, end - seek)
                heard = self._heard(seek, size)
                decoded = yield from self._decode(heard, seek)
                if self._is_silence(decoded):
                    seek += size
                    yield Progress(seek / FRAMES_PER_SECOND)
                    continue
                offset = seek / FRAMES_PER_SECOND
                split = split_window(decoded.tokens, self._tokens.first_time, offset, size)
                # A window whose only time is its beginning would be read again for ever.
                advance = split.advance if split.advance > 0 else size
                if self._timer is not None:
                    at, skips = yield from self._time_words(self._timer, split, heard, seek, size)
                    if at is not None:
                        advance = max(1, round(at * FRAMES_PER_SECOND) - seek)
                    if skips:
                        seek += advance
                        yield Progress(seek / FRAMES_PER_SECOND)
                        continue
                for piece in split.pieces:
                    text = self._tokens.decode(piece.tokens)
                    if piece.start == piece.end or not text.strip():
                        continue
                    self._written += piece.tokens
                    yield Segment(
                        id=number,
                        start=piece.start,
                        end=piece.end,
                        text=text,
                        tokens=tuple(piece.tokens),
                        avg_logprob=decoded.avg_logprob,
                        no_speech_prob=decoded.no_speech_prob,
                        compression_ratio=decoded.compression_ratio,
                        temperature=decoded.temperature,
                        seek=seek,
                        words=None if self._timer is None else piece.words,
                    )
                    number += 1
                high = decoded.temperature > self._options.prompt_reset_on_temperature
                if high or not self._options.condition_on_previous_text:
                    self._forgotten = len(self._written)
                seek += advance
                yield Progress(min(seek, frames) / FRAMES_PER_SECOND)

    def _time_words(
        self, timer: WordTimer, split: Split, heard: FloatArray, seek: int, size: int
    ) -> Generator[list[Ask], Results, tuple[float | None, bool]]:
        """Times the words of a window's pieces, and leaves out those that were hardly said.

        Gives (seconds at which to go on, or None where the pieces' own times say it; whether the
        window is read again from there).
        """
        assert self._language is not None
        pieces, offset = split.pieces, seek / FRAMES_PER_SECOND
        begin = self._tokens.sequence(self._language, self._options.task, timestamps=True)
        reading, found = timer.reading(pieces, begin, size), None
        if reading is not None:
            ((found,),) = yield [Ask(reading.prompt, reading.sampling, heard)]
        timer.time(pieces, reading, found, self._language, offset)
        at = None if split.ends_in_silence else end_of(pieces)
        if at is not None and at <= offset:
            at = None
        threshold = self._options.hallucination_silence_threshold
        if threshold is not None:
            silent_to = leading_silence(pieces, threshold, offset)
            if silent_to is not None:
                return silent_to, True
            jump = drop_hallucinations(
                pieces,
                threshold,
                offset=offset,
                window_end=(seek + self._window) / FRAMES_PER_SECOND,
                heard_end=(seek + size) / FRAMES_PER_SECOND,
                duration=self._features.shape[0] / FRAMES_PER_SECOND,
                last_speech=timer.spoken,
            )
            at = at if jump is None else jump
        timer.end_window(pieces)
        return at, False

    def _heard(self, seek: int, size: int) -> FloatArray:
        """Frames that the encoder reads: those of a window, then zeros."""
        if size == self._window:
            return self._features[seek : seek + size]
        heard = np.zeros((self._window, self._features.shape[1]), np.float32)
        heard[:size] = self._features[seek : seek + size]
        return heard

    def _detect(self) -> Steps:
        if not self._tokens.multilingual:
            self._language = "en"
        if self._language is not None:
            yield Language(self._language, 1.0)
            return
        size = min(self._window, self._features.shape[0])
        codes = {token: code for code, token in self._tokens.languages.items()}
        sampling = Sampling(
            max_new_tokens=1,
            allowed_ids=list(codes),
            filtered_logprobs=True,
            logprobs=min(len(codes), _MOST_LANGUAGES),
        )
        ((found,),) = yield [Ask([self._tokens.start], sampling, self._heard(0, size))]
        assert found.logprobs is not None
        self._language = codes[found.ids[0]]
        yield Language(self._language, math.exp(found.logprobs[0]))

    def _begun(self, first: bool) -> list[int]:
        """Tokens that a window's text begins with, which the model goes on with: of a prefix."""
        tokens, options = self._tokens, self._options
        if not first or not options.prefix:
            return []
        prefix = tokens.encode(f" {options.prefix.strip()}")[: self._half - 1]
        return prefix if options.without_timestamps else [tokens.first_time, *prefix]

    def _prompt(self, begun: Sequence[int]) -> tuple[list[int], list[int]]:
        """(tokens up to the one that begins a text, tokens behind it, of which the last ones are
        `begun`)"""
        tokens, options = self._tokens, self._options
        most = self._half - 1
        assert self._language is not None
        wanted = tokens.sequence(self._language, options.task, not options.without_timestamps)
        wanted += begun
        before: list[int] = []
        if options.hotwords and not begun:
            before += tokens.encode(f" {options.hotwords.strip()}")[:most]
        before += self._written[self._forgotten :][-most:]
        if not before:
            return wanted[:1], wanted[1:]
        # Hot words and the text so far may together leave no room for a token more.
        room = self._context - len(wanted) - 2
        return [tokens.start_of_previous, *before[-room:], *wanted[:1]], wanted[1:]

    def _sampling(self, temperature: float, seed: int, prompt: int) -> Sampling:
        options = self._options
        most = self._half if options.max_new_tokens is None else options.max_new_tokens
        shared = Sampling(
            max_new_tokens=max(1, min(most, self._context - prompt)),
            suppress_tokens=self._suppressed,
            begin_suppress_tokens=self._blanks if options.suppress_blank else (),
            filtered_logprobs=True,
            logprobs=0,
            length_penalty=options.length_penalty,
        )
        if not options.without_timestamps:
            shared = replace(shared, timestamps=self._tokens.rules(options.max_initial_timestamp))
        if temperature > 0:
            return replace(shared, temperature=temperature, n=options.best_of, seed=seed)
        if options.beam_size == 1:
            return shared
        return replace(shared, num_beams=options.beam_size, patience=options.patience)

    def _decode(self, heard: FloatArray, seek: int) -> Generator[list[Ask], Results, Decoded]:
        """Decodes a window at one temperature after another, until it does not fail."""
        begun = self._begun(first=seek == 0)
        before, behind = self._prompt(begun)
        prompt = [*before, *behind]
        silence = Sampling(max_new_tokens=1, allowed_ids=[self._tokens.no_speech], logprobs=0)
        asked = [Ask(before, silence, heard)]
        no_speech = 0.0
        decoded: Decoded | None = None
        for number, temperature in enumerate(self._options.temperatures):
            seed = (int(self._options.seed) + (seek << 5) + number) % (1 << 63)
            sampling = self._sampling(temperature, seed, len(prompt))
            asked.append(Ask(prompt, sampling, heard))
            *first, results = yield asked
            asked = []
            if first:
                ((quiet,),) = first
                assert quiet.logprobs is not None
                no_speech = math.exp(quiet.logprobs[0])
            decoded = self._best(begun, results, temperature, no_speech)
            if not self._fails(decoded):
                break
        assert decoded is not None
        return decoded

    def _best(
        self,
        begun: list[int],
        results: Sequence[GeneratedTokens],
        temperature: float,
        no_speech: float,
    ) -> Decoded:
        """The hypothesis, or the sample, with the best log-probability for its length, after the
        tokens that the text begins with. These are given, and have no probability."""

        def worth(one: GeneratedTokens) -> float:
            length = max(1, len(self._text_of(one)))
            return _total(one) / math.pow(length, self._options.length_penalty)

        best = results[0] if temperature == 0 else max(results, key=worth)
        chosen = self._text_of(best)
        tokens = [*begun, *chosen]
        text = self._tokens.decode(tokens).strip()
        return Decoded(
            tokens=tokens,
            text=text,
            avg_logprob=_total(best) / (len(chosen) + 1),
            no_speech_prob=no_speech,
            compression_ratio=compression_ratio(text),
            temperature=temperature,
        )

    def _text_of(self, found: GeneratedTokens) -> list[int]:
        ids = found.ids
        return ids[: ids.index(self._tokens.end)] if self._tokens.end in ids else ids

    def _fails(self, decoded: Decoded) -> bool:
        options = self._options
        ratio, logprob = options.compression_ratio_threshold, options.log_prob_threshold
        improbable = logprob is not None and decoded.avg_logprob < logprob
        silent = options.no_speech_threshold
        if improbable and silent is not None and decoded.no_speech_prob > silent:
            return False
        return improbable or (ratio is not None and decoded.compression_ratio > ratio)

    def _is_silence(self, decoded: Decoded) -> bool:
        options = self._options
        threshold, logprob = options.no_speech_threshold, options.log_prob_threshold
        if threshold is None or decoded.no_speech_prob <= threshold:
            return False
        return logprob is None or decoded.avg_logprob <= logprob


def _total(found: GeneratedTokens) -> float:
    assert found.logprobs is not None
    return float(np.sum(np.asarray(found.logprobs, np.float64)))
