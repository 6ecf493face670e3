"""Pairs of texts scored by cross-encoders."""

from __future__ import annotations

from collections.abc import Iterable, Sized

import numpy as np

from packhorse.pairs import as_scores, check_scores
from packhorse.result import FloatArray
from packhorse.text.runner import Progress, TextRunner
from packhorse.text.settings import choose_prompt


class Scoring(TextRunner):
    def score(
        self,
        query: str,
        documents: Iterable[str],
        *,
        max_length: int | None = None,
        truncation: bool | str = True,
        progress: Progress | None = None,
    ) -> FloatArray:
        """How well each document answers the query: float32[documents]. See `score_pairs`."""
        if isinstance(documents, str):
            raise ValueError("documents is one str, expected an iterable of them")
        pairs = ((query, document) for document in documents)
        total = len(documents) if isinstance(documents, Sized) else None
        return self._score(pairs, total, max_length, truncation, progress)

    def score_pairs(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        max_length: int | None = None,
        truncation: bool | str = True,
        progress: Progress | None = None,
    ) -> FloatArray:
        """Of each (query, document), what sentence-transformers' CrossEncoder predicts: float32[N].

        That is the logit of the model's one label, after the activation that the checkpoint names.
        """
        return self._score(pairs, None, max_length, truncation, progress)

    def _score(
        self,
        pairs: Iterable[tuple[str, str]],
        total: int | None,
        max_length: int | None,
        truncation: bool | str,
        progress: Progress | None,
    ) -> FloatArray:
        config = self.session.config
        check_scores(config)
        prompt = choose_prompt(self.tokenizer.config, None, None)
        runs = self._run(
            pairs, ["logits"], max_length, truncation, progress, prompt=prompt, total=total
        )
        parts = [as_scores(config, result.logits) for _, _, result in runs]
        return np.concatenate([np.empty(0, np.float32), *parts])
