"""Pairs of texts scored by cross-encoders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from packhorse.names import Truncation
from packhorse.pairs import as_scores, check_scores
from packhorse.result import FloatArray
from packhorse.text.checks import Text
from packhorse.text.runner import Progress, TextRunner, as_texts
from packhorse.text.settings import choose_prompt
from packhorse.text.template import find_template
from packhorse.text.tokenizer import NO_FRAME

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import ScoreCall

Pairs = Iterable[tuple[str, str]]


def _checked(pairs: Pairs) -> Iterator[tuple[str, str]]:
    for i, pair in enumerate(pairs):
        if isinstance(pair, tuple | list) and len(pair) == 2:
            query, document = pair
            if isinstance(query, str) and isinstance(document, str):
                yield query, document
                continue
        raise ValueError(
            f"texts[{i}] is {pair!r:.80}, expected a query and a document: (str, str). One pair "
            "is a list of one: [(query, document)]"
        )


class Scoring(TextRunner):
    @overload
    def score(
        self,
        query: str,
        documents: str,
        **options: Unpack[ScoreCall],
    ) -> float: ...
    @overload
    def score(
        self,
        query: str,
        documents: Iterable[str],
        **options: Unpack[ScoreCall],
    ) -> FloatArray: ...
    def score(
        self,
        query: str,
        documents: str | Iterable[str],
        *,
        instruction: str | None = None,
        max_length: int | None = None,
        truncation: bool | Truncation = True,
        progress: Progress | None = None,
    ) -> Any:
        """How well each document answers the query: float32[documents]; of one str, a float.

        A score is what `score_pairs` gives for the pair (query, document), and the other arguments
        are as there. Raises ValueError as that does.
        """
        if not isinstance(query, str):
            raise ValueError(f"query is {query!r:.80}, expected a str")
        chosen = as_texts(documents)
        pairs = ((query, document) for document in chosen)
        total = len(chosen) if isinstance(chosen, Sized) else None
        scores = self._score(pairs, total, instruction, max_length, truncation, progress)
        return float(scores[0]) if isinstance(documents, str) else scores

    def score_pairs(
        self,
        pairs: Pairs,
        *,
        instruction: str | None = None,
        max_length: int | None = None,
        truncation: bool | Truncation = True,
        progress: Progress | None = None,
    ) -> FloatArray:
        """Of each (query, document), what sentence-transformers' CrossEncoder predicts: float32[N].

        That is the logit of the model's one label, after the activation that the checkpoint names;
        of a generative reranker, the probability of "yes" among "yes" and "no", unless that
        activation is Identity: then the logit of "yes" less that of "no".

        instruction  what makes a document a good one, for generative rerankers; None: the model's
                     default prompt, else its template's. Their texts, written as one, are cut on
                     the side that the tokenizer's files say; what the template puts around them
                     stays

        Raises ValueError: the model scores no pairs, or its spec's template is not usable; an
        instruction where the model or its template takes none; truncation to one text of a pair
        with a template; a pair that is not one, by its number; a `max_length` that leaves no room
        or is more than the model's; a pair longer than that with `truncation=False`.
        """
        total = len(pairs) if isinstance(pairs, Sized) else None
        return self._score(pairs, total, instruction, max_length, truncation, progress)

    def _score(
        self,
        pairs: Iterable[Any],
        total: int | None,
        instruction: str | None,
        max_length: int | None,
        truncation: bool | Truncation,
        progress: Progress | None,
    ) -> FloatArray:
        config = self.session.config
        check_scores(config)
        prompt = choose_prompt(self.tokenizer.config, None, None)
        template = find_template(config)
        texts: Iterable[Text] = _checked(pairs)
        frame = NO_FRAME
        if template is not None:
            if not isinstance(truncation, bool):
                raise ValueError(
                    f"truncation {truncation!r:.80}: this model's template is cut as one text, "
                    "expected True or False"
                )
            if instruction is not None and not template.takes_instruction:
                raise ValueError("instruction: this model's template has no {instruction}")
            if instruction is None:
                instruction = prompt or template.instruction
            texts = (template.write(*pair, instruction) for pair in _checked(pairs))
            prompt, frame = "", template.frame(self.tokenizer)
        elif instruction is not None:
            raise ValueError("instruction: this model takes none")
        runs = self._run(
            texts,
            ["logits"],
            max_length,
            truncation,
            progress,
            prompt=prompt,
            frame=frame,
            total=total,
        )
        parts = [as_scores(config, result.logits) for _, _, result in runs]
        return np.concatenate([np.empty(0, np.float32), *parts])
