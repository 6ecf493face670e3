"""Tasks of the text layer for requests that come over the network."""

from __future__ import annotations

from typing import Any

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse.names import OutputName, ScoreActivation
from packhorse.packing import Int32Array
from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text
from packhorse.text.parts import Request
from packhorse.text.runner import Task, TextRunner
from packhorse.text.settings import choose_prompt
from packhorse.text.tasks.labels import Classification, check_classifier, default_activation
from packhorse.text.tasks.scores import Scoring


class OfIds:
    """A task whose texts come as token ids, special tokens included.

    task    makes the results
    output  what it reads them from
    """

    def __init__(
        self,
        runner: TextRunner,
        task: Task[Any, Any, Any],
        output: OutputName,
        truncation: bool,
        max_length: int | None = None,
    ) -> None:
        self._runner = runner
        self._task = task
        self._output = output
        self._max_length = runner.longest(max_length)
        self._truncation = truncation
        self._vocabulary = int(stem_of(runner.session.config)["vocab_size"])

    def prepare(self, texts: list[list[int]], first: int) -> tuple[Request, None]:
        ids = [self._read(row, i) for i, row in enumerate(texts, first)]
        types = [np.zeros_like(row) for row in ids]
        return self._runner.request(ids, types, self._output), None

    def _read(self, ids: list[int], number: int) -> Int32Array:
        row = np.array(ids, np.int64)
        if row.size and not 0 <= row.min() <= row.max() < self._vocabulary:
            raise ValueError(
                f"texts[{number}] has ids from {row.min()} to {row.max()}, expected 0 to "
                f"{self._vocabulary - 1}"
            )
        if row.size > self._max_length and not self._truncation:
            raise ValueError(
                f"texts[{number}] has {row.size} tokens, max_length is {self._max_length}, and "
                "truncation=False"
            )
        return row[: self._max_length].astype(np.int32)

    def finish(self, texts: list[Any], kept: None, result: RunResult) -> Any:
        return self._task.finish(texts, kept, result)


class HiddenStates:
    """A vector of each token of each text: those for late interaction where the model has such,
    else the last hidden states."""

    def __init__(self, runner: TextRunner, *, prompt_name: str | None, truncation: bool) -> None:
        self._runner = runner
        self.output: OutputName = "vectors" if "vectors" in runner.encoder.outputs else "hidden"
        self._prompt = choose_prompt(runner.tokenizer.config, None, prompt_name)
        self._truncation = truncation

    def prepare(self, texts: list[Text], first: int) -> tuple[Request, None]:
        tokens = self._runner.encode(
            texts,
            first,
            self._runner.max_length,
            truncation=self._truncation,
            prompt=self._prompt,
        )
        return self._runner.request(tokens.ids, tokens.type_ids, self.output), None

    def finish(self, _texts: object, _kept: None, result: RunResult) -> list[FloatArray]:
        found: list[FloatArray] = np.split(result[self.output], result.cu_seqlens[1:-1])
        return found


class Ranking(Scoring):
    """Pairs of a query and a text to scores between 0 and 1; `raw`: to logits."""

    def __init__(
        self, runner: TextRunner, *, raw: bool, truncation: bool, max_length: int | None
    ) -> None:
        super().__init__(
            runner,
            instruction=None,
            max_length=max_length,
            truncation=truncation,
            activation="none" if raw else "sigmoid",
        )

    def prepare(self, pairs: list[Any], first: int) -> tuple[Request, None]:
        return super().prepare(list(self._written(pairs)), first)


class Predictions(Classification):
    """Labels of texts and pairs as the pipeline scores them, best first: a list of each, also of
    one label."""

    def __init__(
        self,
        runner: TextRunner,
        *,
        top_k: int | None,
        activation: ScoreActivation | None,
        truncation: bool,
    ) -> None:
        classifier = check_classifier(runner.session.config)
        super().__init__(
            runner,
            top_k=top_k,
            max_length=None,
            truncation=truncation,
            activation=activation or default_activation(classifier),
        )

    def finish(self, texts: list[Any], kept: None, result: RunResult) -> list[Any]:
        found = super().finish(texts, kept, result)
        return [[best] for best in found] if self._top_k == 1 else found
