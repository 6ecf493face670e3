"""Sparse vectors of texts: weights of entries of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from packhorse.heads import require_head
from packhorse.names import OutputName
from packhorse.packing import Int32Array
from packhorse.progress_bar import Progress
from packhorse.result import FloatArray, RunResult
from packhorse.retrieval import lexical_weights, sparse_entries
from packhorse.text.checks import Text
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.settings import choose_prompt
from packhorse.text.tokenization.token_arrays import TokenArrays

SparseVector = tuple[Int32Array, FloatArray]


class SparseEmbedding:
    """Texts to sparse vectors; the arguments are those of `TextModel.embed_sparse`."""

    def __init__(
        self,
        runner: TextRunner,
        *,
        prompt: str | None,
        prompt_name: str | None,
        max_length: int | None,
        truncation: bool,
    ) -> None:
        self._runner = runner
        require_head(runner.session.config, "embed_sparse")
        self._output: OutputName = (
            "sparse" if "sparse" in runner.encoder.outputs else "token_weights"
        )
        self._prompt = choose_prompt(runner.tokenizer.config, prompt, prompt_name)
        self._special = runner.tokenizer.special_ids
        self._max_length = runner.longest(max_length)
        self._truncation = truncation

    def prepare(self, texts: list[Text], first: int) -> tuple[Request, list[TokenArrays]]:
        """Keeps the tokens of each text where their own weights are asked for."""
        tokens = self._runner.encode(
            texts,
            first,
            self._max_length,
            truncation=self._truncation,
            prompt=self._prompt,
            offsets=self._output == "token_weights",
        )
        return self._runner.request(tokens.ids, tokens.type_ids, self._output), tokens.arrays

    def finish(
        self, _texts: object, tokens: list[TokenArrays], result: RunResult
    ) -> list[SparseVector]:
        if self._output == "sparse":
            return sparse_entries(result.sparse)
        weights = np.split(result.token_weights, result.cu_seqlens[1:-1])
        return [self._heaviest(*of_text) for of_text in zip(tokens, weights, strict=True)]

    def _heaviest(self, tokens: TokenArrays, weights: FloatArray) -> SparseVector:
        own = tokens.parts >= 0
        words = lexical_weights(tokens.ids[own], weights[own], self._special)
        order = np.array(sorted(words), np.int32)
        return order, np.array([words[i] for i in order.tolist()], np.float32)

    def run(self, texts: str | Iterable[str], progress: Progress | None) -> Any:
        return self._runner.results_of_texts(self, texts, progress)
