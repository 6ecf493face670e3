"""Masked words of texts, filled in by a masked language model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from packhorse.heads import require_head
from packhorse.number_checks import is_int
from packhorse.packing import Int32Array
from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.tasks.labels import softmax


class Word(TypedDict):
    """A token that fills a mask: its id and text, and the whole text with it."""

    score: float
    token: int
    token_str: str
    sequence: str


class MaskFilling:
    """Texts to the words of their masks; the arguments are those of `TextModel.fill_mask`."""

    def __init__(
        self,
        runner: TextRunner,
        *,
        top_k: int,
        targets: str | Iterable[str] | None,
        max_length: int | None,
        truncation: bool,
    ) -> None:
        self._runner = runner
        require_head(runner.session.config, "fill_mask")
        self._most = runner.encoder.max_predictions
        if self._most == 0:
            raise ValueError(
                "fill_mask: this model was loaded without its head; load it with the number of "
                "masks in one run: TextModel.load(path, max_predictions=64)"
            )
        mask_id = runner.tokenizer.special_id("mask")
        if mask_id is None:
            raise ValueError(
                "fill_mask: the tokenizer's files name no mask_token of the vocabulary"
            )
        if not is_int(top_k) or top_k < 1:
            raise ValueError(f"top_k is {top_k!r:.80}, expected a whole number over 0")
        self._mask_id = mask_id
        self._top_k = top_k
        self._unknown: list[str] = []  # targets that are not in the vocabulary
        self._wanted = None if targets is None else self._target_ids(targets)
        self._max_length = runner.longest(max_length)
        self._truncation = truncation

    def _target_ids(self, targets: str | Iterable[str]) -> Int32Array:
        tokenizer = self._runner.tokenizer
        found = set()
        for target in [targets] if isinstance(targets, str) else targets:
            number = tokenizer.id_of(str(target))
            if number is None:
                ids = tokenizer.plain_ids(str(target))
                if not ids.size:
                    raise ValueError(f"targets: {target!r:.80} has no tokens")
                number = int(ids[0])
                self._unknown.append(
                    f"targets: {target!r:.80} is not in the vocabulary, its first token "
                    f"{tokenizer.token_of(number)!r} is taken"
                )
            found.add(number)
        if not found:
            raise ValueError("targets is empty, expected a token or more")
        return np.array(sorted(found), np.int32)

    def prepare(self, texts: list[Text], first: int) -> tuple[Request, list[Int32Array]]:
        """Keeps the tokens of each text."""
        tokens = self._runner.encode(
            texts, first, self._max_length, truncation=self._truncation, pairs=False
        )
        places = [np.flatnonzero(ids == self._mask_id).astype(np.int32) for ids in tokens.ids]
        for i, masks in enumerate(places, first):
            if not 1 <= masks.size <= self._most:
                name = self._runner.tokenizer.token_of(self._mask_id)
                raise ValueError(f"texts[{i}] has {masks.size} {name}, expected 1 to {self._most}")
        request = self._runner.request(tokens.ids, tokens.type_ids, "predictions", places=places)
        return request, tokens.ids

    def finish(
        self, _texts: object, ids: list[Int32Array], result: RunResult
    ) -> list[list[Word] | list[list[Word]]]:
        found: list[list[Word] | list[list[Word]]] = []
        begin = 0
        for row in ids:
            places = np.flatnonzero(row == self._mask_id)
            scores = softmax(result.predictions[begin : begin + places.size])
            begin += places.size
            words = self._words(row, places, scores)
            found.append(words if len(words) > 1 else words[0])
        return found

    def _words(
        self, ids: Int32Array, places: npt.NDArray[np.intp], scores: FloatArray
    ) -> list[list[Word]]:
        """Words for each mask of one text; scores [masks, vocabulary]."""
        tokenizer = self._runner.tokenizer
        wanted = self._wanted
        if wanted is None:
            wanted = np.arange(scores.shape[1], dtype=np.int32)
        order = np.argsort(-scores[:, wanted], axis=1, kind="stable")[:, : self._top_k]
        found = []
        for place, row, best in zip(places, scores, wanted[order].tolist(), strict=True):
            words: list[Word] = []
            for token in best:
                filled = ids.copy()
                filled[place] = token
                words.append(
                    {
                        "score": float(row[token]),
                        "token": token,
                        "token_str": tokenizer.decode([token], skip_special=False),
                        # The other masks stay, as do the special tokens beside them.
                        "sequence": tokenizer.decode(
                            filled.tolist(), skip_special=len(places) == 1
                        ),
                    }
                )
            found.append(words)
        return found

    def run(self, texts: str | Iterable[str]) -> Any:
        # Python keeps every warning's text for good, so that a server gives none.
        for message in self._unknown:
            warnings.warn(message, stacklevel=3)  # the caller of the method of TextModel
        # The logits of a chunk are all kept at once, and every text has a mask: one run's masks.
        chunk = min(self._runner.session.max_sequences, self._most)
        return self._runner.results_of_texts(self, texts, None, chunk=chunk)
