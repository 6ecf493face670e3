"""Answers in the windows of a context, of the logits of their first and last tokens.

As transformers' pipeline finds them. In each window a softmax over the tokens of the context and
the one that stands for "no answer", then probability of the start x probability of the end; of the
best spans of all windows, those of the same text are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from packhorse.result import FloatArray
from packhorse.text.tasks.labels import softmax
from packhorse.text.tokenization.windows import Window

_NEVER = np.float32(-10000)  # logit of what cannot begin or end an answer


class Answer(TypedDict):
    """An answer: `answer` is context[start:end]; "", 0 and 0 say that there is none."""

    score: float
    start: int
    end: int
    answer: str


class AnswerOptions(NamedTuple):
    """Arguments of `TextModel.answer` under their names there."""

    top_k: int
    max_answer_length: int
    allow_none: bool
    align_to_words: bool

    @property
    def candidates(self) -> int:
        """Spans of a window: some of them turn out to be the same words."""
        return 2 * self.top_k + 10 if self.align_to_words else self.top_k


def find_answers(
    context: str,
    windows: Sequence[Window],
    logits: Sequence[FloatArray],
    none_id: int | None,
    options: AnswerOptions,
) -> list[Answer]:
    """The best answers of all windows, best first; logits [tokens, 2] of each window.

    none_id  the token that begins a window and stands for no answer; None: there is none
    """
    found: dict[str, Answer] = {}
    none = np.inf
    for window, rows in zip(windows, logits, strict=True):
        possible = window.tokens.ids == (-1 if none_id is None else none_id)
        possible[window.own] = True
        start, end = softmax(np.where(possible[:, None], rows, _NEVER).T)
        none = min(none, float(start[0] * end[0]))
        start[0] = end[0] = 0
        for first, last, score in _best_spans(start, end, options):
            if possible[first] and possible[last]:
                begin, stop = _characters(window, first, last, options.align_to_words)
                text = context[begin:stop]
                answer: Answer = {"score": 0.0, "start": begin, "end": stop, "answer": text}
                found.setdefault(text.lower(), answer)["score"] += score
    answers = list(found.values())
    if options.allow_none or not answers:
        none = none if options.allow_none else 0.0
        answers.append({"score": none, "start": 0, "end": 0, "answer": ""})
    return sorted(answers, key=lambda answer: -answer["score"])[: options.top_k]


def _best_spans(
    start: FloatArray, end: FloatArray, options: AnswerOptions
) -> list[tuple[int, int, float]]:
    """(first token, last token, score) of the likeliest spans, best first.

    Where there are too few, others of score 0 follow, as in transformers.
    """
    count = options.candidates
    longest = min(options.max_answer_length, len(start))
    # scores[i, n]: from token i over n more ones.
    scores: FloatArray = start[:, None] * sliding_window_view(
        np.pad(end, (0, longest - 1)), longest
    )
    enough = np.count_nonzero(scores) >= count
    if not enough:  # scores[i, j]: from token i to token j
        scores = np.tril(np.triu(np.outer(start, end)), longest - 1)
    rows, columns = np.unravel_index(_largest(scores, count), scores.shape)
    last = rows + columns if enough else columns
    return list(zip(rows.tolist(), last.tolist(), scores[rows, columns].tolist(), strict=True))


def _largest(scores: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """Indices of the largest `count` in the flattened array, the largest first, and of equal ones
    those further in front: NumPy's own order of equal numbers depends on the processor."""
    negative = -scores.ravel()
    if count == 1:
        return np.array([negative.argmin()])
    if negative.size <= count:
        return np.argsort(negative, kind="stable")
    limit = np.partition(negative, count - 1)[count - 1]
    better, equal = np.flatnonzero(negative < limit), np.flatnonzero(negative == limit)
    best = np.concatenate([better, equal[: count - better.size]])
    return best[np.argsort(negative[best], kind="stable")]


def _characters(window: Window, first: int, last: int, align_to_words: bool) -> tuple[int, int]:
    """Characters from the begin of one token to the end of another; to whole words, as far as they
    stand in the window, where both tokens belong to words."""
    tokens = window.tokens
    begin, end = int(tokens.begins[first]), int(tokens.ends[last])
    if not align_to_words:
        return begin, end
    words = tokens.words[window.own]
    places = [
        np.flatnonzero((words == tokens.words[token]) & (words >= 0)) + window.own.start
        for token in (first, last)
    ]
    if not all(place.size for place in places):
        return begin, end
    return int(tokens.begins[places[0][0]]), int(tokens.ends[places[1][-1]])
