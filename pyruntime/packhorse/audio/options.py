"""Options of transcription, checked once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.audio.tokens import APPENDED, PREPENDED, TASKS
from packhorse.audio.vad import VadOptions
from packhorse.number_checks import is_int, is_number

MODES = ("sequential", "chunked")
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class TranscribeOptions:
    """Options of `AudioModel.transcribe`, under the names and with the defaults of openai-whisper
    and faster-whisper.

    language          code, such as "en"; None: that of the first 30 seconds
    task              "transcribe", or "translate" into English
    beam_size         beams at temperature 0; 1: the most probable token each time
    best_of           samples at other temperatures, of which the most probable is taken
    patience          beam search ends when beam_size * patience hypotheses are finished
    length_penalty    hypotheses are ranked by log-probability / length ** length_penalty
    temperature       one, or several: the next is tried where a window fails
    compression_ratio_threshold
                      a window whose text has a higher ratio fails; None: none does
    log_prob_threshold
                      a window whose mean log-probability is lower fails; None: none does
    no_speech_threshold
                      a window with a higher probability of no speech, and a mean log-probability
                      below log_prob_threshold, is silence; None: none is
    condition_on_previous_text
                      the text so far stands before each window
    prompt_reset_on_temperature
                      it no longer does after a window that took a higher temperature
    initial_prompt    text, or tokens, that stand before the first window
    prefix            text that the first window begins with; the model goes on with it
    hotwords          words that stand before each window, where there is no prefix
    suppress_blank    a window begins with neither a space nor the end
    suppress_tokens   tokens that are never written; -1: marks of what is no speech
    without_timestamps
                      no tokens of time are written: a window is one segment
    max_initial_timestamp
                      seconds up to which the first token of time of a window may go
    max_new_tokens    tokens of a window at most; None: half of the model's context
    word_timestamps   segments have `words` with times, from the decoder's attention to the audio
    prepend_punctuations, append_punctuations
                      marks that belong to the word behind them, or before them
    hallucination_silence_threshold
                      with word_timestamps: text that was hardly said, between pauses longer than so
                      many seconds, is left out; None: none is
    clip_timestamps   seconds at which parts begin and end: [begin, end, begin, ...]; the last end
                      may be left out
    seed              of the samples at temperatures above 0
    mode              "sequential": openai-whisper's algorithm, window after window. "chunked": an
                      audio is cut into windows of 30 seconds, which are decoded all at once. That
                      is faster where there are few audios, and gives up what a window knows of
                      those before: there is no text before it but initial_prompt, a sentence may
                      be cut in two (without vad_filter a word), and the loudness that frames are
                      measured by is the window's own. Retries and thresholds hold in each window
    vad_filter        parts without speech are left out before the model hears anything; times are
                      those of the whole audio, seek that of what is left. Needs the extra `vad`
    vad_parameters    what counts as speech (`VadOptions`), or some of its fields. Where none are
                      given, "chunked" has silences of 160 ms between parts, which last 30 seconds
                      at most
    vad_model         file of Silero's network; None: that of the package faster-whisper

    Raises ValueError that names the option, what was found and what was expected.
    """

    language: str | None = None
    task: str = "transcribe"
    beam_size: int = 5
    best_of: int = 5
    patience: float = 1.0
    length_penalty: float = 1.0
    temperature: float | Sequence[float] = TEMPERATURES
    compression_ratio_threshold: float | None = 2.4
    log_prob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = True
    prompt_reset_on_temperature: float = 0.5
    initial_prompt: str | Sequence[int] | None = None
    prefix: str | None = None
    hotwords: str | None = None
    suppress_blank: bool = True
    suppress_tokens: Sequence[int] | None = (-1,)
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0
    max_new_tokens: int | None = None
    word_timestamps: bool = False
    prepend_punctuations: str = PREPENDED
    append_punctuations: str = APPENDED
    hallucination_silence_threshold: float | None = None
    clip_timestamps: Sequence[float] = ()
    seed: int = 0
    mode: str = "sequential"
    vad_filter: bool = False
    vad_parameters: VadOptions | Mapping[str, Any] | None = None
    vad_model: str | os.PathLike[str] | None = None

    @property
    def temperatures(self) -> tuple[float, ...]:
        found = self.temperature
        return tuple(found) if isinstance(found, Sequence) else (float(found),)

    def __post_init__(self) -> None:
        _check(self.task in TASKS, "task", self.task, "'transcribe' or 'translate'")
        for name in ("beam_size", "best_of"):
            value = getattr(self, name)
            _check(is_int(value) and 1 <= value <= 64, name, value, "1 to 64")
        for name in ("language", "prefix", "hotwords"):
            value = getattr(self, name)
            _check(value is None or isinstance(value, str), name, value, "a text, or None")
        _check(is_number(self.patience) and self.patience > 0, "patience", self.patience, "above 0")
        for name in ("length_penalty", "prompt_reset_on_temperature"):
            _check(is_number(getattr(self, name)), name, getattr(self, name), "a number")
        optional = (
            "compression_ratio_threshold",
            "log_prob_threshold",
            "no_speech_threshold",
            "max_initial_timestamp",
        )
        for name in optional:
            value = getattr(self, name)
            _check(value is None or is_number(value), name, value, "a number, or None")
        low = self.max_initial_timestamp
        _check(low is None or low >= 0, "max_initial_timestamp", low, "0 or more, or None")
        given = self.temperature
        temperatures = list(given) if isinstance(given, Sequence) else [given]
        known = 0 < len(temperatures) <= 32 and all(
            is_number(one) and 0 <= one <= 100 for one in temperatures
        )
        _check(known, "temperature", given, "a number from 0 on, or several")
        flags = ("condition_on_previous_text", "suppress_blank", "without_timestamps", "vad_filter")
        for name in flags:
            value = getattr(self, name)
            _check(isinstance(value, bool), name, value, "True or False")
        self._check_words()
        prompt = self.initial_prompt
        known = prompt is None or isinstance(prompt, str) or _are_ids(prompt, 0)
        _check(known, "initial_prompt", prompt, "a text, token ids, or None")
        suppressed = self.suppress_tokens
        known = suppressed is None or _are_ids(suppressed, -1)
        _check(known, "suppress_tokens", suppressed, "token ids, or -1, or None")
        most = self.max_new_tokens
        known = most is None or (is_int(most) and 1 <= most <= 1 << 20)
        _check(known, "max_new_tokens", most, "1 or more, or None")
        clips = self.clip_timestamps
        known = isinstance(clips, Sequence) and not isinstance(clips, str)
        known = known and all(is_number(one) and one >= 0 for one in clips)
        _check(known and list(clips) == sorted(clips), "clip_timestamps", clips,
               "seconds that do not fall: [begin, end, ...]")  # fmt: skip
        _check(not (clips and self.vad_filter), "clip_timestamps", clips,
               "none beside vad_filter, which chooses the parts")  # fmt: skip
        _check(self.mode in MODES, "mode", self.mode, "'sequential' or 'chunked'")
        VadOptions.of(self.vad_parameters)
        file = self.vad_model
        _check(
            file is None or isinstance(file, str | os.PathLike),
            "vad_model",
            file,
            "a path, or None",
        )
        _check(is_int(self.seed) and 0 <= self.seed < 1 << 62, "seed", self.seed, "0 to 2**62")

    def _check_words(self) -> None:
        given = self.word_timestamps
        _check(isinstance(given, bool), "word_timestamps", given, "True or False")
        for name in ("prepend_punctuations", "append_punctuations"):
            _check(isinstance(getattr(self, name), str), name, getattr(self, name), "a text")
        name, least = "hallucination_silence_threshold", self.hallucination_silence_threshold
        known = least is None or (is_number(least) and least >= 0)
        _check(known, name, least, "0 seconds or more, or None")
        _check(least is None or given, name, least, "None without word_timestamps")


def _check(holds: bool, name: str, found: Any, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {found!r:.80}, expected {expected}")


def _are_ids(value: Any, least: int) -> bool:
    known = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return known and all(is_int(one) and least <= one < 1 << 31 for one in value)
