"""Extractive question answering: a span of a context, from the logits of its first and last token.

A context longer than the model takes is read in windows that overlap, each after the question.
Spans are scored as usual since SQuAD: in each window a softmax over the context's tokens and the
first token, which stands for "no answer", then probability of the start x probability of the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from packhorse.packing import Int32Array
from packhorse.pairs import classifier_of
from packhorse.result import FloatArray
from packhorse.text.labels import softmax
from packhorse.text.runner import TextRunner
from packhorse.text.streaming import prepare_ahead

if TYPE_CHECKING:
    from tokenizers import Encoding


_MAX_LENGTH = 384  # tokens of a window, unless asked otherwise: what models are trained with


class Answer(TypedDict):
    """`answer` is context[start:end]; of no answer "", 0 and 0."""

    score: float
    start: int
    end: int
    answer: str


class Window(NamedTuple):
    ids: Int32Array
    type_ids: Int32Array
    context: slice  # where its tokens are
    first: int  # number of its first token in the encoding of the whole pair


def check_answers(config: Mapping[str, Any]) -> None:
    """Raises ValueError for a model without logits of starts and ends."""
    classifier = classifier_of(config, "answer")
    if classifier["input"] != "tokens" or list(classifier["labels"]) != ["start", "end"]:
        raise ValueError(
            "answer: this model does not answer questions: its labels are "
            f"{', '.join(classifier['labels'])!r:.120}, expected start and end of each token"
        )


def split_windows(encoding: Encoding, max_length: int, stride: int, name: str) -> list[Window]:
    """Windows of up to `max_length` tokens; neighbours share `stride` tokens of the context."""
    ids, type_ids = np.array([encoding.ids, encoding.type_ids], np.int32)
    context = [i for i, text in enumerate(encoding.sequence_ids) if text == 1] or [len(ids)]
    begin, end = context[0], min(context[-1] + 1, len(ids))
    around = len(ids) - (end - begin)
    room = max_length - around
    fits = end - begin <= room
    if not fits and room <= stride:
        raise ValueError(
            f"{name}: the question has {around} tokens with special ones; at max_length "
            f"{max_length} no room is left for windows that share {stride} tokens"
        )
    windows = []
    for first in [begin] if fits else range(begin, end - stride, room - stride):
        last = min(first + room, end)
        kept = np.r_[:begin, first:last, end : len(ids)]
        own = slice(begin, begin + last - first)
        windows.append(Window(ids[kept], type_ids[kept], own, first))
    return windows


def find_answers(
    context: str,
    encoding: Encoding,
    windows: Sequence[Window],
    logits: Sequence[FloatArray],
    max_answer_length: int,
    top_k: int,
    allow_none: bool,
) -> list[Answer]:
    """The best spans of all windows; logits [tokens, 2] of each window."""
    found: dict[tuple[int, int], float] = {}
    none = 1.0
    for window, rows in zip(windows, logits, strict=True):
        considered = np.zeros(len(rows), bool)
        considered[window.context] = considered[:1] = True
        start, end = softmax(np.where(considered[:, None], rows, -np.inf).T)
        none = min(none, float(start[0] * end[0]))
        start, end = start[window.context], end[window.context]
        if not len(start):
            continue
        # spans[i, n]: from token i over n more ones; past the end of the window below 0.
        ends = np.pad(end, (0, max_answer_length - 1), constant_values=-1)
        spans = start[:, None] * sliding_window_view(ends, max_answer_length)
        best = np.argsort(-spans, axis=None, kind="stable")[:top_k]
        for i, more in zip(*np.unravel_index(best, spans.shape), strict=True):
            if i + more < len(start):
                first = window.first + int(i)
                span = _characters(encoding, first, first + int(more))
                found[span] = max(found.get(span, 0.0), float(spans[i, more]))
    answers: list[Answer] = [
        {"score": score, "start": begin, "end": end, "answer": context[begin:end]}
        for (begin, end), score in found.items()
    ]
    if allow_none or not answers:
        answers.append({"score": none, "start": 0, "end": 0, "answer": ""})
    return sorted(answers, key=lambda answer: -answer["score"])[:top_k]


def _characters(encoding: Encoding, first: int, last: int) -> tuple[int, int]:
    """Of the words that two tokens of the context belong to, from the first to the last one."""
    ends = []
    for token in (first, last):
        word = encoding.token_to_word(token)
        ends.append(encoding.word_to_chars(word, 1) if word is not None else None)
    begin = ends[0] or encoding.offsets[first]
    end = ends[1] or encoding.offsets[last]
    return int(begin[0]), int(end[1])


class Answering(TextRunner):
    def answer(
        self,
        question: str | Iterable[str],
        context: str | Iterable[str],
        *,
        top_k: int = 1,
        max_length: int | None = None,
        stride: int = 128,
        max_answer_length: int = 15,
        allow_none: bool = False,
    ) -> Any:
        """Where the context answers the question: {"score", "start", "end", "answer"}.

        Of two str the answer itself, of as many questions as contexts a list. With `top_k` over 1,
        lists of up to so many, best first. `start` and `end` count characters of the context.

        max_length         tokens of a window: None: `self.max_length`, but at most 384
        stride             tokens that neighbouring windows share, at most half of a window
        max_answer_length  tokens of an answer
        allow_none         whether "" may be the answer
        """
        check_answers(self.session.config)
        if top_k < 1 or max_answer_length < 1 or stride < 0:
            raise ValueError(
                f"top_k {top_k} and max_answer_length {max_answer_length} must be positive, "
                f"stride {stride} not negative"
            )
        single = isinstance(question, str)
        if single != isinstance(context, str):
            raise ValueError("question and context must be both str, or both iterables of them")
        pairs: Iterable[Any] = (
            [(question, context)] if single else zip(question, context, strict=True)
        )
        longest = min(self.max_length, _MAX_LENGTH) if max_length is None else max_length
        longest = self._longest(longest)

        def prepare(chunk: Sequence[Any], first: int) -> list[tuple[Encoding, list[Window]]]:
            tokens = self.tokenizer.encode(chunk, None, offsets=True, first=first)
            shared = min(stride, longest // 2)
            return [
                (encoding, split_windows(encoding, longest, shared, f"texts[{i}]"))
                for i, encoding in enumerate(tokens.encodings, first)
            ]

        found: list[Any] = []
        for chunk, prepared in prepare_ahead(pairs, self.session.max_sequences, prepare):
            windows = [window for _, own in prepared for window in own]
            result = self._run_tokens(
                [window.ids for window in windows],
                [window.type_ids for window in windows],
                "logits",
            )
            rows = iter(np.split(result.logits, result.cu_seqlens[1:-1]))
            for (_, text), (encoding, own) in zip(chunk, prepared, strict=True):
                logits = [next(rows) for _ in own]
                best = find_answers(
                    text, encoding, own, logits, max_answer_length, top_k, allow_none
                )
                found.append(best[0] if top_k == 1 else best)
        return found[0] if single else found
