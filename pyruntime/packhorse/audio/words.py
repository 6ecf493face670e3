"""Times of single words, from the cross attention of the decoder (openai-whisper; Radford et al.
2022, arXiv 2212.04356).

The tokens of a window are read once more, all at once, and some heads of the decoder then say which
frames of audio each token attends to. Words get the times of their tokens; marks belong to the
words beside them; words that would last too long around pauses are cut.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from packhorse.audio.results import Word
from packhorse.audio.tokens import APPENDED, PREPENDED, SECONDS_PER_STEP, SpeechTokens
from packhorse.audio.windows import FRAMES_PER_STEP, Piece
from packhorse.generation.results import GeneratedTokens
from packhorse.generation.sampling import Sampling

_SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
_WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
_HALF_A_CHARACTER = "\ufffd"
_MEDIAN_WIDTH = 7  # steps whose median counts
_LONGEST_MEDIAN = 0.7  # seconds

# Rules for words that are hardly said where they stand.
_IMPROBABLE = 0.15
_SHORT_S, _LONG_S = 0.133, 2.0
_WORDS_OF_ANOMALY = 8  # first words of a segment that count
_ANOMALY = 3.0


@dataclass
class TimedWord:
    """A word that is still being made. start, end: seconds from the beginning of its window."""

    word: str
    tokens: list[int]
    start: float
    end: float
    probability: float

    @property
    def duration(self) -> float:
        return self.end - self.start


def split_words(
    tokens: Sequence[int], known: SpeechTokens, language: str
) -> list[tuple[str, list[int]]]:
    """Words of text tokens with their tokens: at spaces, or in languages without these after each
    whole character."""
    characters = _split_characters(tokens, known)
    if language in _WITHOUT_SPACES:
        return characters
    words: list[tuple[str, list[int]]] = []
    for text, own in characters:
        begins = text.startswith(" ") or text.strip() in string.punctuation
        if begins or not words:
            words.append((text, own))
        else:
            before, its = words[-1]
            words[-1] = (before + text, its + own)
    return words


def _split_characters(tokens: Sequence[int], known: SpeechTokens) -> list[tuple[str, list[int]]]:
    """The fewest tokens each that make whole characters."""
    whole = known.decode(tokens)
    found: list[tuple[str, list[int]]] = []
    length = 0
    own: list[int] = []
    for token in tokens:
        own.append(token)
        text = known.decode(own)
        half = text.find(_HALF_A_CHARACTER)
        # A mark that stands in the whole text was said so, or is never completed.
        place = length + half
        if half < 0 or (place < len(whole) and whole[place] == _HALF_A_CHARACTER):
            found.append((text, own))
            length += len(text)
            own = []
    return found


def merge_marks(words: Sequence[TimedWord], prepended: str, appended: str) -> None:
    """Gives marks and their tokens to the word behind them, or before them; what is given away
    becomes empty."""
    behind = len(words) - 1
    for i in range(len(words) - 2, -1, -1):
        word, following = words[i], words[behind]
        if word.word.startswith(" ") and word.word.strip() in prepended:
            following.word = word.word + following.word
            following.tokens = word.tokens + following.tokens
            word.word, word.tokens = "", []
        else:
            behind = i
    before = 0
    for i in range(1, len(words)):
        previous, word = words[before], words[i]
        if not previous.word.endswith(" ") and word.word in appended:
            previous.word += word.word
            previous.tokens = previous.tokens + word.tokens
            word.word, word.tokens = "", []
        else:
            before = i


class Reading(NamedTuple):
    """A pass over the text of a window, which tells when it is said.

    prompt: its tokens. first, end: those before which the tokens of the text come."""

    prompt: list[int]
    sampling: Sampling
    first: int
    end: int


class WordTimer:
    """Times words of one audio, window after window.

    heads: (layer, head) of the cross attention that follows the audio. prepended, appended: marks
    that belong to the word behind, or before them. context: positions of the decoder.
    """

    def __init__(
        self,
        tokens: SpeechTokens,
        heads: Sequence[tuple[int, int]],
        prepended: str,
        appended: str,
        context: int,
    ) -> None:
        self._tokens = tokens
        self._prepended, self._appended = prepended, appended
        self._context = context
        self.spoken = 0.0  # seconds of the audio at which the last word of windows before ends
        # Log-probabilities are those among tokens of text.
        self._sampling = {
            "max_new_tokens": 0,
            "prompt_logprobs": 0,
            "filtered_logprobs": True,
            "allowed_ids": range(tokens.end),
            "alignment_heads": heads,
        }

    def text_of(self, piece: Piece) -> list[int]:
        return [token for token in piece.tokens if token < self._tokens.end]

    def reading(self, pieces: Sequence[Piece], begin: Sequence[int], frames: int) -> Reading | None:
        """The reading of the text of a window of so many frames; None: there is none.

        begin: tokens that say what is wanted
        """
        text = [token for piece in pieces for token in self.text_of(piece)]
        if not text or frames < FRAMES_PER_STEP:
            return None
        prompt = [*begin, self._tokens.no_timestamps, *text, self._tokens.end]
        # The end's own weights are not needed.
        prompt = prompt[: self._context]
        first = len(begin)
        sampling = Sampling(**self._sampling, alignment_source=frames // FRAMES_PER_STEP)  # type: ignore[arg-type]
        return Reading(prompt, sampling, first, first + len(text) + 1)

    def time(
        self,
        pieces: Sequence[Piece],
        reading: Reading | None,
        found: GeneratedTokens | None,
        language: str,
        offset: float,
    ) -> None:
        """Gives the pieces their words, and the times of these. offset: seconds at which the window
        begins."""
        words: list[TimedWord] = []
        if reading is not None and found is not None:
            words = self._align(reading, found, language)
        durations = np.array([word.duration for word in words if word.duration != 0])
        median = min(_LONGEST_MEDIAN, float(np.median(durations)) if durations.size else 0.0)
        if durations.size:
            _cut_at_sentences(words, 2 * median)
        merge_marks(words, self._prepended, self._appended)
        number = 0
        spoken = self.spoken
        for piece in pieces:
            taken, own = 0, []
            length = len(self.text_of(piece))
            while number < len(words) and taken < length:
                word = words[number]
                if word.word:
                    start, end = (round(offset + one, 2) for one in (word.start, word.end))
                    own.append(TimedWord(word.word, word.tokens, start, end, word.probability))
                taken += len(word.tokens)
                number += 1
            if own:
                _fit_to_piece(own, piece, median, spoken)
                spoken = piece.end
            piece.words = tuple(Word(one.word, one.start, one.end, one.probability) for one in own)

    def end_window(self, pieces: Sequence[Piece]) -> None:
        """The pieces of a window are done."""
        end = end_of(pieces)
        self.spoken = self.spoken if end is None else end

    def _align(self, reading: Reading, found: GeneratedTokens, language: str) -> list[TimedWord]:
        from packhorse._native.audio import token_times

        assert found.alignment is not None
        assert found.prompt_logprobs is not None
        steps = token_times(found.alignment, reading.first, reading.end, _MEDIAN_WIDTH)
        logprobs = np.asarray(found.prompt_logprobs.logprobs[reading.first :], np.float64)
        probabilities = np.exp(logprobs)
        text = reading.prompt[reading.first + 1 : reading.end]
        words = []
        begin = 0
        for word, tokens in split_words(text, self._tokens, language):
            end = begin + len(tokens)
            start_s, end_s = steps[begin] * SECONDS_PER_STEP, steps[end] * SECONDS_PER_STEP
            probability = float(np.mean(probabilities[begin:end]))
            words.append(TimedWord(word, tokens, start_s, end_s, probability))
            begin = end
        return words


def _cut_at_sentences(words: Sequence[TimedWord], longest: float) -> None:
    """Cuts ends of sentences, and words behind these, that last too long: they hold a pause."""
    for before, word in pairwise(words):
        if word.duration <= longest:
            continue
        if word.word in _SENTENCE_ENDS:
            word.end = word.start + longest
        elif before.word in _SENTENCE_ENDS:
            word.start = word.end - longest


def _fit_to_piece(words: list[TimedWord], piece: Piece, median: float, spoken: float) -> None:
    """Cuts the first words after a pause where they last too long, and lets words and their segment
    begin and end together. spoken: seconds at which the text before ends."""
    longest = 2 * median
    first, last = words[0], words[-1]
    second = words[1] if len(words) > 1 else None
    long = first.duration > longest or (
        second is not None and second.end - first.start > 2 * longest
    )
    if first.end - spoken > 4 * median and long:
        if second is not None and second.duration > longest:
            first.end = second.start = max(second.end / 2, second.end - longest)
        first.start = max(0.0, first.end - longest)
    # The segment's own times count where a word goes far beyond them.
    if piece.start < first.end and piece.start - 0.5 > first.start:
        first.start = max(0.0, min(first.end - median, piece.start))
    else:
        piece.start = first.start
    if piece.end > last.start and piece.end + 0.5 < last.end:
        last.end = max(last.start + median, piece.end)
    else:
        piece.end = last.end


def end_of(pieces: Sequence[Piece]) -> float | None:
    """Seconds at which the last word ends, or the last piece where there are no words."""
    for piece in reversed(pieces):
        if piece.words:
            return piece.words[-1].end
    return pieces[-1].end if pieces else None


def is_anomalous(piece: Piece | None) -> bool:
    """True for a text that was hardly said: improbable words, very short or very long ones."""
    if piece is None or not piece.words:
        return False
    marks = PREPENDED + APPENDED
    words = [word for word in piece.words if word.word not in marks][:_WORDS_OF_ANOMALY]
    score = 0.0
    for word in words:
        duration = word.end - word.start
        score += 1.0 if word.probability < _IMPROBABLE else 0.0
        score += 15 * max(0.0, _SHORT_S - duration) + max(0.0, duration - _LONG_S)
    return score >= _ANOMALY or score + 0.01 >= len(words)


def leading_silence(pieces: Sequence[Piece], threshold: float, offset: float) -> float | None:
    """Seconds at which to go on, where the first text of a window that begins at `offset` is
    anomalous, and more than `threshold` seconds before it are silent."""
    first = next((piece for piece in pieces if piece.words), None)
    if first is None or not is_anomalous(first) or first.start - offset <= threshold:
        return None
    return first.start


def drop_hallucinations(
    pieces: list[Piece],
    threshold: float,
    offset: float,
    window_end: float,
    heard_end: float,
    duration: float,
    last_speech: float,
) -> float | None:
    """Takes anomalous text between pauses longer than `threshold` seconds out of `pieces`, and what
    follows it.

    offset, window_end  seconds at which the window begins, and would end if it were whole
    heard_end           seconds at which the audio of the window ends
    duration            seconds of the audio
    last_speech         seconds at which the text before ends

    Gives the seconds at which to go on then; None: there is no such text.
    """
    spoken = last_speech
    for i, piece in enumerate(pieces):
        if not piece.words:
            continue
        if is_anomalous(piece):
            following = next((one for one in pieces[i + 1 :] if one.words), None)
            next_start = following.words[0].start if following and following.words else heard_end
            quiet_before = (
                piece.start - spoken > threshold
                or piece.start < threshold
                or piece.start - offset < 2.0
            )
            quiet_behind = (
                next_start - piece.end > threshold
                or is_anomalous(following)
                or window_end - piece.end < 2.0
            )
            if quiet_before and quiet_behind:
                at = duration if duration - piece.end < threshold else max(offset + 1, piece.start)
                del pieces[i:]
                return at
        spoken = piece.end
    return None
