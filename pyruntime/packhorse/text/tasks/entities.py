"""Entities of texts, by a classifier of tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from packhorse.heads import require_head
from packhorse.names import AggregationStrategy
from packhorse.progress_bar import Progress
from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.tasks.tagging import (
    STRATEGIES,
    continues_word,
    drop_overlaps,
    find_entities,
    join_entities,
)
from packhorse.text.tokenization.token_arrays import TokenArrays
from packhorse.text.tokenization.windows import Windows, logits_by_text, prepare_windows


class TokenClassification:
    """Texts to entities; the arguments are those of `TextModel.classify_tokens`."""

    def __init__(
        self,
        runner: TextRunner,
        *,
        aggregation_strategy: AggregationStrategy,
        ignore_labels: Collection[str],
        stride: int | None,
        max_length: int | None,
        truncation: bool,
    ) -> None:
        self._runner = runner
        require_head(runner.session.config, "classify_tokens")
        if aggregation_strategy not in STRATEGIES:
            raise ValueError(
                f"aggregation_strategy {aggregation_strategy!r:.80} is not one of "
                f"{', '.join(STRATEGIES)}"
            )
        if stride is not None and aggregation_strategy == "none":
            raise ValueError(
                'stride joins entities of windows, not with aggregation_strategy="none"'
            )
        self._strategy = aggregation_strategy
        self._ignored = ignore_labels
        self._max_length = longest = runner.longest(max_length)
        self._truncation = truncation
        if stride is not None and not 0 <= stride < longest:
            raise ValueError(f"stride {stride} is not between 0 and max_length, {longest}")
        self._windows = None if stride is None else Windows(runner.tokenizer, longest, stride)

    def prepare(self, texts: list[Text], first: int) -> tuple[Request, list[list[TokenArrays]]]:
        """Keeps the tokens of each window of each text; without a stride there is one."""
        if self._windows is not None:
            request, found = prepare_windows(self._runner, self._windows, texts, first, part=0)
            return request, [[window.tokens for window in windows] for windows in found]
        tokens = self._runner.encode(
            texts, first, self._max_length, truncation=self._truncation, offsets=True, pairs=False
        )
        request = self._runner.request(tokens.ids, tokens.type_ids, "logits")
        return request, [[arrays] for arrays in tokens.arrays]

    def finish(
        self, texts: list[Text], windows: list[list[TokenArrays]], result: RunResult
    ) -> list[list[Any]]:
        found = []
        logits = logits_by_text(windows, result)
        for text, own, rows in zip(texts, windows, logits, strict=True):
            kept = [
                entity
                for tokens, of_window in zip(own, rows, strict=True)
                for entity in self._entities(str(text), tokens, of_window)
                if (entity.get("entity_group") or entity["entity"]) not in self._ignored
            ]
            found.append(drop_overlaps(kept) if len(own) > 1 else kept)
        return found

    def _entities(self, text: str, tokens: TokenArrays, logits: FloatArray) -> Iterator[Any]:
        runner, strategy = self._runner, self._strategy
        of_words = strategy not in ("none", "simple")
        continues = (
            continues_word(runner.tokenizer, text, tokens) if of_words else [False] * len(logits)
        )
        found = find_entities(runner.session.labels, text, tokens, logits, strategy, continues)
        return found if strategy == "none" else join_entities(text, found)

    def run(self, texts: str | Iterable[str], progress: Progress | None) -> Any:
        return self._runner.results_of_texts(self, texts, progress)
