"""Extractive question answering: which words of a context answer a question.

A context longer than the model takes is read in windows that overlap, each after the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import chain, repeat
from typing import Any

from packhorse.heads import require_head
from packhorse.number_checks import is_int
from packhorse.result import RunResult
from packhorse.text.checks import as_texts
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.tasks.spans import AnswerOptions, find_answers
from packhorse.text.tokenization.windows import Window, Windows, logits_by_text, prepare_windows

_MAX_LENGTH = 384  # tokens of a window, unless asked otherwise: what models are trained with
_STRIDE = 128


def _as_pairs(question: str | Iterable[str], context: str | Iterable[str]) -> Iterable[Any]:
    as_texts(question, "question")
    as_texts(context, "context")
    if isinstance(context, str):
        if isinstance(question, str):
            return [(question, context)]
        return zip(question, repeat(context), strict=False)
    if isinstance(question, str):
        raise ValueError("question is a str and context is not: give one question for each context")
    if isinstance(question, Sized) and isinstance(context, Sized) and len(question) != len(context):
        raise ValueError(
            f"{len(question)} questions and {len(context)} contexts, expected as many of both"
        )
    return zip(question, context, strict=True)


class Answering:
    """Questions and contexts to answers; the arguments are those of `TextModel.answer`."""

    def __init__(
        self,
        runner: TextRunner,
        *,
        max_length: int | None,
        stride: int | None,
        options: AnswerOptions,
    ) -> None:
        self._runner = runner
        require_head(runner.session.config, "answer")
        longest = min(runner.max_length, _MAX_LENGTH) if max_length is None else max_length
        longest = runner.longest(longest)
        shared = min(_STRIDE, longest // 2) if stride is None else stride
        for name, number, least in (
            ("top_k", options.top_k, 1),
            ("max_answer_length", options.max_answer_length, 1),
            ("stride", shared, 0),
        ):
            if not is_int(number) or number < least:
                raise ValueError(
                    f"{name} is {number!r:.80}, expected a whole number from {least} on"
                )
        self._options = options
        self._windows = Windows(runner.tokenizer, longest, shared)
        self._none_id = runner.tokenizer.special_id("cls")

    def prepare(self, pairs: list[Any], first: int) -> tuple[Request, list[list[Window]]]:
        return prepare_windows(self._runner, self._windows, pairs, first, part=1)

    def finish(self, pairs: list[Any], windows: list[list[Window]], result: RunResult) -> list[Any]:
        found: list[Any] = []
        logits = logits_by_text(windows, result)
        for (_, context), own, rows in zip(pairs, windows, logits, strict=True):
            best = find_answers(context, own, rows, self._none_id, self._options)
            found.append(best[0] if self._options.top_k == 1 else best)
        return found

    def run(self, question: str | Iterable[str], context: str | Iterable[str]) -> Any:
        pairs = _as_pairs(question, context)
        found = list(chain.from_iterable(self._runner.results(self, pairs)))
        return found[0] if isinstance(question, str) else found
