"""Vectors of texts for sparse and late-interaction retrieval."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from packhorse.heads import require_head
from packhorse.names import OutputName
from packhorse.packing import Int32Array
from packhorse.result import FloatArray
from packhorse.retrieval import lexical_weights, sparse_entries
from packhorse.text.runner import Progress, TextRunner, as_texts
from packhorse.text.settings import choose_prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import PromptCall

SparseVector = tuple[Int32Array, FloatArray]


class Retrieval(TextRunner):
    @overload
    def embed_sparse(
        self,
        texts: str,
        **options: Unpack[PromptCall],
    ) -> SparseVector: ...
    @overload
    def embed_sparse(
        self,
        texts: Iterable[str],
        **options: Unpack[PromptCall],
    ) -> list[SparseVector]: ...
    def embed_sparse(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """(token ids, weights) of each text, ids ascending, weights above zero, in a list; of a
        single str, its own pair.

        Of SPLADE models, which weigh the whole vocabulary, and of those like BGE-M3, which weigh a
        text's own tokens: of a token that comes more than once the largest weight counts, special
        tokens do not. Other models: ValueError. Prompts as in `embed`.
        """
        require_head(self.session.config, "embed_sparse")
        output: OutputName = "sparse" if "sparse" in self.session.outputs else "token_weights"
        before = choose_prompt(self.tokenizer.config, prompt, prompt_name)
        special = self.tokenizer.special_ids
        found: list[SparseVector] = []
        for _, tokens, result in self._run(
            as_texts(texts),
            [output],
            max_length,
            truncation,
            progress,
            prompt=before,
            offsets=output == "token_weights",
        ):
            if output == "sparse":
                found += sparse_entries(result.sparse)
                continue
            weights = np.split(result.token_weights, result.cu_seqlens[1:-1])
            for ids, of_text, encoding in zip(tokens.ids, weights, tokens.encodings, strict=True):
                own = np.array(encoding.special_tokens_mask) == 0
                words = lexical_weights(ids[own], of_text[own], special)
                order = np.array(sorted(words), np.int32)
                found.append((order, np.array([words[i] for i in order.tolist()], np.float32)))
        return found[0] if isinstance(texts, str) else found

    @overload
    def embed_tokens(
        self,
        texts: str,
        **options: Unpack[PromptCall],
    ) -> FloatArray: ...
    @overload
    def embed_tokens(
        self,
        texts: Iterable[str],
        **options: Unpack[PromptCall],
    ) -> list[FloatArray]: ...
    def embed_tokens(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """A vector for each token of each text, special tokens too: a list of [tokens, size]; of a
        single str, its own. They have length 1 where the model makes them so.

        For late interaction (`packhorse.late_interaction`), of models that have such vectors: those
        of ColBERT's kind and BGE-M3. Other models: ValueError. Prompts as in `embed`.
        """
        require_head(self.session.config, "embed_tokens")
        before = choose_prompt(self.tokenizer.config, prompt, prompt_name)
        found: list[FloatArray] = []
        for _, _, result in self._run(
            as_texts(texts), ["vectors"], max_length, truncation, progress, prompt=before
        ):
            found += np.split(result.vectors, result.cu_seqlens[1:-1])
        return found[0] if isinstance(texts, str) else found
