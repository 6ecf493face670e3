"""Masked words of texts, filled in by a masked language model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np

from packhorse.heads import require_head
from packhorse.packing import Int32Array, pack
from packhorse.result import FloatArray
from packhorse.text.labels import softmax
from packhorse.text.runner import TextRunner, as_texts
from packhorse.text.tokenizer import Tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import MaskCall


class Word(TypedDict):
    """What fills a mask: a token's id and text, and the whole text with it."""

    score: float
    token: int
    token_str: str
    sequence: str


class MaskFilling(TextRunner):
    @overload
    def fill_mask(
        self,
        texts: str,
        **options: Unpack[MaskCall],
    ) -> list[Word] | Any: ...
    @overload
    def fill_mask(
        self,
        texts: Iterable[str],
        **options: Unpack[MaskCall],
    ) -> list[list[Word] | Any]: ...
    def fill_mask(
        self,
        texts: str | Iterable[str],
        *,
        top_k: int = 5,
        targets: str | Iterable[str] | None = None,
        max_length: int | None = None,
        truncation: bool = True,
    ) -> Any:
        """The `top_k` likeliest tokens for the mask of each text, best first, each {"score",
        "token" (its id), "token_str", "sequence" (the text with it)}; a list of such lists for a
        text with several masks. A single str gives its own result. Equal to transformers'
        fill-mask pipeline.

        targets  only these tokens; what is no entry of the vocabulary counts as its first token,
                 with a UserWarning

        Scores are softmax probabilities over the vocabulary. The model is loaded with
        `max_predictions`: no text may have more masks. Raises ValueError for a text without a mask,
        and for a model without this head.
        """
        self.session.check_open()
        require_head(self.session.config, "fill_mask")
        most = self.session.max_predictions
        if most == 0:
            raise ValueError(
                "fill_mask: this model was loaded without its head; load it with the number of "
                "masks in one run: TextModel.load(path, max_predictions=64)"
            )
        mask_id = self.tokenizer.special_id("mask")
        if mask_id is None:
            raise ValueError(
                "fill_mask: the tokenizer's files name no mask_token of the vocabulary"
            )
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}, expected 1 or more")
        wanted = None if targets is None else self._target_ids(targets)
        longest = self.max_length if max_length is None else self._longest(max_length)
        tokens = self.tokenizer.encode(
            list(as_texts(texts)), longest, truncation=truncation, pairs=False, table=self._table
        )
        counts = [int((ids == mask_id).sum()) for ids in tokens.ids]
        for i, count in enumerate(counts):
            if not 1 <= count <= most:
                name = self.tokenizer.token_of(mask_id)
                raise ValueError(f"texts[{i}] has {count} {name}, expected 1 to {most}")
        found: list[Any] = []
        for first, last in self._parts(tokens.ids, counts):
            logits = self._predict(tokens, first, last, mask_id)
            for ids, rows in zip(tokens.ids[first:last], logits, strict=True):
                words = self._words(ids, mask_id, softmax(rows), top_k, wanted)
                found.append(words if len(words) > 1 else words[0])
        return found[0] if isinstance(texts, str) else found

    def _target_ids(self, targets: str | Iterable[str]) -> Int32Array:
        found = set()
        for target in as_texts(targets):
            number = self.tokenizer.id_of(str(target))
            if number is None:
                ids = self.tokenizer.plain_ids(str(target))
                if not ids.size:
                    raise ValueError(f"targets: {target!r:.80} has no tokens")
                number = int(ids[0])
                warnings.warn(
                    f"targets: {target!r:.80} is not in the vocabulary, its first token "
                    f"{self.tokenizer.token_of(number)!r} is taken",
                    stacklevel=3,
                )
            found.add(number)
        if not found:
            raise ValueError("targets is empty, expected a token or more")
        return np.array(sorted(found), np.int32)

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

    def _predict(self, tokens: Tokens, first: int, last: int, mask_id: int) -> list[FloatArray]:
        """Logits [masks, vocabulary] of each text."""
        types = tokens.type_ids[first:last] if self._has_types else None
        batch = pack(tokens.ids[first:last], type_ids=types)
        rows = np.flatnonzero(batch.ids == mask_id)
        logits = self.session.run(batch, outputs=["predictions"], rows=rows).predictions
        found: list[FloatArray] = np.split(logits, np.searchsorted(rows, batch.cu_seqlens[1:-1]))
        return found

    def _words(
        self,
        ids: Int32Array,
        mask_id: int,
        scores: FloatArray,
        top_k: int,
        wanted: Int32Array | None,
    ) -> list[list[Word]]:
        """Of one text, for each of its masks; scores [masks, vocabulary]."""
        places = np.flatnonzero(ids == mask_id)
        if wanted is None:
            wanted = np.arange(scores.shape[1], dtype=np.int32)
        order = np.argsort(-scores[:, wanted], axis=1, kind="stable")[:, :top_k]
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
                        "token_str": self.tokenizer.decode([token], skip_special=False),
                        # The other masks stay, as do the special tokens beside them.
                        "sequence": self.tokenizer.decode(
                            filled.tolist(), skip_special=len(places) == 1
                        ),
                    }
                )
            found.append(words)
        return found
