"""Masked words of texts, filled in by a masked language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypedDict

import numpy as np

from packhorse.packing import Int32Array, pack
from packhorse.text.labels import softmax
from packhorse.text.runner import TextRunner, as_texts
from packhorse.text.tokenizer import Tokens


class Word(TypedDict):
    token: str
    token_id: int
    score: float


class MaskFilling(TextRunner):
    def fill_mask(
        self,
        texts: str | Iterable[str],
        *,
        top_k: int = 5,
        max_length: int | None = None,
        truncation: bool = True,
    ) -> Any:
        """Of each text, for each of its masks in turn, the `top_k` likeliest tokens, best first.

        list[list[list[Word]]]; of a single str its list[list[Word]]. Scores are softmax
        probabilities over the vocabulary. The model is loaded with `max_predictions`: no text may
        have more masks. Raises ValueError for a text without a mask.
        """
        most = self.session.max_predictions
        mask = self.tokenizer.config.mask_token
        mask_id = None if mask is None else self.tokenizer.id_of(mask)
        if most == 0:
            raise ValueError("fill_mask: load the model with max_predictions, its masks in one run")
        if mask_id is None:
            raise ValueError(
                "fill_mask: tokenizer_config.json names no mask_token of the vocabulary"
            )
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}, expected 1 or more")
        rows = list(as_texts(texts))
        longest = self.max_length if max_length is None else self._longest(max_length)
        tokens = self.tokenizer.encode(rows, longest, truncation=truncation)
        counts = [int((ids == mask_id).sum()) for ids in tokens.ids]
        for i, count in enumerate(counts):
            if not 1 <= count <= most:
                raise ValueError(f"texts[{i}] has {count} {mask}, expected 1 to {most}")
        found: list[list[list[Word]]] = []
        for first, last in self._parts(tokens.ids, counts):
            found += self._fill(tokens, first, last, mask_id, top_k)
        return found[0] if isinstance(texts, str) else found

    def _parts(self, ids: Sequence[Int32Array], counts: list[int]) -> Iterator[tuple[int, int]]:
        """Ranges of texts that each fit one run."""
        limits = (
            self.session.max_tokens,
            self.session.max_sequences,
            self.session.max_predictions,
        )
        first = 0
        used = np.zeros(3, np.int64)
        for i, row in enumerate(ids):
            one = np.array([row.size, 1, counts[i]])
            if i > first and (used + one > limits).any():
                yield first, i
                first = i
                used[:] = 0
            used += one
        if first < len(ids):
            yield first, len(ids)

    def _fill(
        self, tokens: Tokens, first: int, last: int, mask_id: int, top_k: int
    ) -> list[list[list[Word]]]:
        types = tokens.type_ids[first:last] if self._has_types else None
        batch = pack(tokens.ids[first:last], type_ids=types)
        rows = np.flatnonzero(batch.ids == mask_id)
        logits = self.session.run(batch, outputs=["predictions"], rows=rows).predictions
        scores = softmax(logits)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        words: list[list[Word]] = [
            [
                {"token": self.tokenizer.token_of(i), "token_id": i, "score": float(row[i])}
                for i in order
            ]
            for row, order in zip(scores, best.tolist(), strict=True)
        ]
        texts = np.searchsorted(batch.cu_seqlens, rows, side="right") - 1
        found: list[list[list[Word]]] = [[] for _ in range(last - first)]
        for text, of_mask in zip(texts.tolist(), words, strict=True):
            found[text].append(of_mask)
        return found
