"""Vectors of the tokens of texts, for late interaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from packhorse.heads import require_head
from packhorse.progress_bar import Progress
from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.settings import choose_prompt


class TokenEmbedding:
    """Texts to vectors of tokens; the arguments are those of `TextModel.embed_tokens`."""

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
        require_head(runner.session.config, "embed_tokens")
        self._prompt = choose_prompt(runner.tokenizer.config, prompt, prompt_name)
        self._max_length = runner.longest(max_length)
        self._truncation = truncation

    def prepare(self, texts: list[Text], first: int) -> tuple[Request, None]:
        tokens = self._runner.encode(
            texts, first, self._max_length, truncation=self._truncation, prompt=self._prompt
        )
        return self._runner.request(tokens.ids, tokens.type_ids, "vectors"), None

    def finish(self, _texts: object, _kept: None, result: RunResult) -> list[FloatArray]:
        found: list[FloatArray] = np.split(result.vectors, result.cu_seqlens[1:-1])
        return found

    def run(self, texts: str | Iterable[str], progress: Progress | None) -> Any:
        return self._runner.results_of_texts(self, texts, progress)
