"""Extractive question answering: which words of a context answer a question.

A context longer than the model takes is read in windows that overlap, each after the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, overload

from packhorse.heads import require_head
from packhorse.text.runner import TextRunner
from packhorse.text.spans import Answer, AnswerOptions, find_answers
from packhorse.text.streaming import prepare_ahead
from packhorse.text.windows import Window, Windows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import AnswerCall

_MAX_LENGTH = 384  # tokens of a window, unless asked otherwise: what models are trained with
_STRIDE = 128


def _as_pairs(question: str | Iterable[str], context: str | Iterable[str]) -> Iterable[Any]:
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


class Answering(TextRunner):
    @overload
    def answer(
        self,
        question: str,
        context: str,
        *,
        top_k: Literal[1] = ...,
        **options: Unpack[AnswerCall],
    ) -> Answer: ...
    @overload
    def answer(
        self,
        question: str,
        context: str,
        *,
        top_k: int,
        **options: Unpack[AnswerCall],
    ) -> list[Answer]: ...
    @overload
    def answer(
        self,
        question: Iterable[str],
        context: str | Iterable[str],
        *,
        top_k: Literal[1] = ...,
        **options: Unpack[AnswerCall],
    ) -> list[Answer]: ...
    @overload
    def answer(
        self,
        question: Iterable[str],
        context: str | Iterable[str],
        *,
        top_k: int,
        **options: Unpack[AnswerCall],
    ) -> list[list[Answer]]: ...
    def answer(
        self,
        question: str | Iterable[str],
        context: str | Iterable[str],
        *,
        top_k: int = 1,
        max_length: int | None = None,
        stride: int | None = None,
        max_answer_length: int = 15,
        allow_none: bool = False,
        align_to_words: bool = True,
    ) -> Any:
        """Where the context answers the question: {"score", "start", "end", "answer"}.

        Two str give the answer itself. As many questions as contexts, or several questions about
        one context, give a list. With `top_k` over 1 each result is a list of up to so many
        answers, best first.
        `start` and `end` count characters of the context, `answer` is context[start:end].

        max_length         tokens of a window; None: `self.max_length`, but at most 384
        stride             tokens that neighbouring windows share; None: 128, but at most half of a
                           window
        max_answer_length  tokens of an answer
        allow_none         whether "" may be the answer (transformers: handle_impossible_answer)
        align_to_words     whether answers are made of whole words

        Equal to the question-answering pipeline of transformers 4, whose `doc_stride` is `stride`,
        `max_seq_len` `max_length` and `max_answer_len` `max_answer_length`. An empty context, which
        it refuses, gives "" with score 0, or 1 with `allow_none`.

        Raises ValueError: a model that does not answer questions; a question that leaves no room.
        """
        self.session.check_open()
        require_head(self.session.config, "answer")
        longest = min(self.max_length, _MAX_LENGTH) if max_length is None else max_length
        longest = self._longest(longest)
        shared = min(_STRIDE, longest // 2) if stride is None else stride
        if top_k < 1 or max_answer_length < 1 or shared < 0:
            raise ValueError(
                f"top_k {top_k} and max_answer_length {max_answer_length} must be positive, "
                f"stride {shared} not negative"
            )
        windows = Windows(self.tokenizer, longest, shared)
        options = AnswerOptions(top_k, max_answer_length, allow_none, align_to_words)
        none_id = self.tokenizer.special_id("cls")

        def prepare(chunk: Sequence[Any], first: int) -> list[list[Window]]:
            read = self.tokenizer.read(chunk, first=first, table=self._table)
            return [windows.split(tokens, 1, f"texts[{i}]") for i, tokens in enumerate(read, first)]

        found: list[Any] = []
        pairs = _as_pairs(question, context)
        for chunk, prepared in prepare_ahead(pairs, self.session.max_sequences, prepare):
            logits = self._run_windows(prepared)
            for (_, text), own, rows in zip(chunk, prepared, logits, strict=True):
                best = find_answers(text, own, rows, none_id, options)
                found.append(best[0] if top_k == 1 else best)
        return found[0] if isinstance(question, str) else found
