"""Entities of texts, by a classifier of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from packhorse.heads import require_head
from packhorse.names import AggregationStrategy
from packhorse.result import FloatArray
from packhorse.text.checks import Text
from packhorse.text.runner import Progress, TextRunner, as_texts
from packhorse.text.streaming import prepare_ahead
from packhorse.text.tagging import (
    STRATEGIES,
    Entity,
    EntityGroup,
    continues_word,
    drop_overlaps,
    find_entities,
    join_entities,
)
from packhorse.text.token_arrays import TokenArrays, arrays_of
from packhorse.text.windows import Window, Windows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import EntityCall


class TokenClassifying(TextRunner):
    @overload
    def classify_tokens(
        self,
        texts: str,
        *,
        aggregation_strategy: Literal["none"] = ...,
        **options: Unpack[EntityCall],
    ) -> list[Entity]: ...
    @overload
    def classify_tokens(
        self,
        texts: str,
        *,
        aggregation_strategy: Literal["simple", "first", "average", "max"],
        **options: Unpack[EntityCall],
    ) -> list[EntityGroup]: ...
    @overload
    def classify_tokens(
        self,
        texts: Iterable[str],
        *,
        aggregation_strategy: Literal["none"] = ...,
        **options: Unpack[EntityCall],
    ) -> list[list[Entity]]: ...
    @overload
    def classify_tokens(
        self,
        texts: Iterable[str],
        *,
        aggregation_strategy: Literal["simple", "first", "average", "max"],
        **options: Unpack[EntityCall],
    ) -> list[list[EntityGroup]]: ...
    @overload
    def classify_tokens(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: AggregationStrategy,
        **options: Unpack[EntityCall],
    ) -> list[Any]: ...
    def classify_tokens(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: AggregationStrategy = "none",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """What a classifier of tokens finds: a list for each text; of a single str, its own list.

        "none": for each token {"entity", "score", "index", "word", "start", "end"}; "simple": for
        each run of tokens of one kind {"entity_group", "score" (the mean), "word", "start", "end"}.
        "first", "average", "max": the same for runs of words, each of which has the label of its
        first token, of the mean of its tokens' scores, or of its surest token.
        `start` and `end` count characters, `word` is text[start:end], `index` counts tokens. Left
        out: special tokens, and what has one of `ignore_labels`.

        stride  None: what is longer than `max_length` is cut. Else it is read in windows that share
                so many tokens; of entities that overlap the longest is kept. Not with "none"

        Raises ValueError: a model that does not label tokens; a pair; a stride that leaves windows
        no room.
        """
        self.session.check_open()
        require_head(self.session.config, "classify_tokens")
        if aggregation_strategy not in STRATEGIES:
            raise ValueError(
                f"aggregation_strategy {aggregation_strategy!r:.80} is not one of "
                f"{', '.join(STRATEGIES)}"
            )
        chosen = as_texts(texts)
        if stride is None:
            read = self._cut(chosen, max_length, truncation, progress)
        elif aggregation_strategy == "none":
            raise ValueError(
                'stride joins entities of windows, not with aggregation_strategy="none"'
            )
        else:
            read = self._in_windows(chosen, stride, max_length, progress)
        found: list[list[Any]] = []
        for text, windows in read:
            kept: list[Any] = []
            for tokens, logits in windows:
                some = self._entities(text, tokens, logits, aggregation_strategy)
                kept += (
                    entity
                    for entity in some
                    if (entity.get("entity_group") or entity["entity"]) not in ignore_labels
                )
            found.append(drop_overlaps(kept) if len(windows) > 1 else kept)
        return found[0] if isinstance(texts, str) else found

    def _entities(
        self, text: str, tokens: TokenArrays, logits: FloatArray, strategy: str
    ) -> Iterator[Any]:
        of_words = strategy not in ("none", "simple")
        continues = (
            continues_word(self.tokenizer, text, tokens) if of_words else [False] * len(logits)
        )
        found = find_entities(self.labels, text, tokens, logits, strategy, continues)
        return found if strategy == "none" else join_entities(text, found)

    def _cut(
        self,
        texts: Iterable[Text],
        max_length: int | None,
        truncation: bool,
        progress: Progress | None,
    ) -> Iterator[tuple[str, list[tuple[TokenArrays, FloatArray]]]]:
        """Yields (text, its tokens and their logits)."""
        for chunk, tokens, result in self._run(
            texts, ["logits"], max_length, truncation, progress, offsets=True, pairs=False
        ):
            rows = np.split(result.logits, result.cu_seqlens[1:-1])
            for text, encoding, logits in zip(chunk, tokens.encodings, rows, strict=True):
                yield str(text), [(arrays_of(encoding), logits)]

    def _in_windows(
        self,
        texts: Iterable[Text],
        stride: int,
        max_length: int | None,
        progress: Progress | None,
    ) -> Iterator[tuple[str, list[tuple[TokenArrays, FloatArray]]]]:
        """Yields (text, tokens and logits of each of its windows)."""
        total = len(texts) if isinstance(texts, Sized) else None
        done = 0
        longest = self.max_length if max_length is None else self._longest(max_length)
        if not 0 <= stride < longest:
            raise ValueError(f"stride {stride} is not between 0 and max_length, {longest}")
        windows = Windows(self.tokenizer, longest, stride)

        def prepare(chunk: Sequence[Text], first: int) -> list[list[Window]]:
            read = self.tokenizer.read(chunk, first=first, pairs=False, table=self._table)
            return [windows.split(tokens, 0, f"texts[{i}]") for i, tokens in enumerate(read, first)]

        for chunk, prepared in prepare_ahead(texts, self.session.max_sequences, prepare):
            logits = self._run_windows(prepared)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
            for text, own, rows in zip(chunk, prepared, logits, strict=True):
                yield (
                    str(text),
                    [(window.tokens, row) for window, row in zip(own, rows, strict=True)],
                )
