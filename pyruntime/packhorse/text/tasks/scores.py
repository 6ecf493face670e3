"""Pairs of texts scored by cross-encoders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np

from packhorse.names import ScoreActivation, Truncation
from packhorse.pairs import as_scores, check_activation, check_scores
from packhorse.progress_bar import Progress
from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text, as_texts
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.settings import choose_prompt
from packhorse.text.tasks.template import find_template
from packhorse.text.tokenization.tokenizer import NO_FRAME

Pairs = Iterable[tuple[str, str]]


def _checked(pairs: Pairs) -> Iterator[tuple[str, str]]:
    for i, pair in enumerate(as_texts(pairs, "pairs")):
        if isinstance(pair, tuple | list) and len(pair) == 2:
            query, document = pair
            if isinstance(query, str) and isinstance(document, str):
                yield query, document
                continue
        raise ValueError(
            f"texts[{i}] is {pair!r:.80}, expected a query and a document: (str, str). One pair "
            "is a list of one: [(query, document)]"
        )


class Scoring:
    """Pairs to scores; the arguments are those of `TextModel.score_pairs`."""

    def __init__(
        self,
        runner: TextRunner,
        *,
        instruction: str | None,
        max_length: int | None,
        truncation: bool | Truncation,
        activation: ScoreActivation | None = None,
    ) -> None:
        self._runner = runner
        check_activation(activation, "sigmoid", "none")
        self._activation = activation
        config = runner.session.config
        check_scores(config)
        self._prompt = choose_prompt(runner.tokenizer.config, None, None)
        self._template = find_template(config)
        self._frame = NO_FRAME
        if self._template is not None:
            if not isinstance(truncation, bool):
                raise ValueError(
                    f"truncation {truncation!r:.80}: this model's template is cut as one text, "
                    "expected True or False"
                )
            if instruction is not None and not self._template.takes_instruction:
                raise ValueError("instruction: this model's template has no {instruction}")
            if instruction is None:
                instruction = self._prompt or self._template.instruction
            self._prompt, self._frame = "", self._template.frame(runner.tokenizer)
        elif instruction is not None:
            raise ValueError("instruction: this model takes none")
        self._instruction = instruction or ""
        self._max_length = runner.longest(max_length)
        self._truncation = truncation

    def prepare(self, texts: list[Text], first: int) -> tuple[Request, None]:
        tokens = self._runner.encode(
            texts,
            first,
            self._max_length,
            truncation=self._truncation,
            prompt=self._prompt,
            frame=self._frame,
        )
        return self._runner.request(tokens.ids, tokens.type_ids, "logits"), None

    def finish(self, _texts: object, _kept: None, result: RunResult) -> FloatArray:
        return as_scores(self._runner.session.config, result.logits, self._activation)

    def _written(self, pairs: Pairs) -> Iterator[Text]:
        """Each pair as the model reads it: two texts, or one where there is a template."""
        for pair in _checked(pairs):
            if self._template is None:
                yield pair
            else:
                yield self._template.write(*pair, self._instruction)

    def run(self, pairs: Pairs, total: int | None, progress: Progress | None) -> FloatArray:
        runs = self._runner.results(self, self._written(pairs), progress, total=total)
        return np.concatenate([np.empty(0, np.float32), *runs])

    def run_query(
        self, query: str, documents: str | Iterable[str], progress: Progress | None
    ) -> Any:
        """Scores of one query and many documents, or one: then its score alone."""
        chosen = as_texts(documents, "documents")
        total = len(chosen) if isinstance(chosen, Sized) else None
        # A document that is no text is refused later, as a pair, with its number.
        pairs: Iterator[Any] = ((query, document) for document in chosen)
        scores = self.run(pairs, total, progress)
        return float(scores[0]) if isinstance(documents, str) else scores
