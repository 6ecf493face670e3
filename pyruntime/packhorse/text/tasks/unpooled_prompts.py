"""Embeddings of models whose pooling leaves the prompt out (INSTRUCTOR): texts are read with it,
and only the tokens behind it are pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.dense_layers import DenseLayer
from packhorse.packing import Int32Array
from packhorse.result import FloatArray, RunResult
from packhorse.text.tokenization.tokenizer import TextTokenizer


class UnpooledPrompt:
    """Pools what stands behind a prompt."""

    def __init__(
        self, config: Mapping[str, Any], layers: Sequence[DenseLayer], tokenizer: TextTokenizer
    ) -> None:
        embedding = config.get("embedding", {})
        pooling = embedding.get("pooling", "mean")
        self._pooling: list[Any] = [pooling] if isinstance(pooling, str) else list(pooling)
        if "weighted_mean" in self._pooling:
            raise ValueError(
                "embed: weighted_mean pooling that leaves a prompt out is not supported"
            )
        self._normalize = bool(embedding.get("normalize"))
        self._layers, self._tokenizer = layers, tokenizer

    def size(self, prompt: str) -> int:
        """Tokens of a prompt, as sentence-transformers counts them: a special token at its end does
        not count."""
        (ids,) = self._tokenizer.encode([prompt], None).ids
        ends = ids.size > 0 and int(ids[-1]) in self._tokenizer.special_ids
        return int(ids.size) - ends

    def embed(self, result: RunResult, size: int) -> FloatArray:
        """Embeddings of sequences whose first `size` tokens are of the prompt, of `hidden`."""
        from packhorse.ops.dense import gemm
        from packhorse.ops.rowwise import pool

        begins, ends = result.cu_seqlens[:-1], result.cu_seqlens[1:]
        starts = np.minimum(begins + size, ends)
        kept = [result.hidden[a:b] for a, b in zip(starts, ends, strict=True)]
        cu: Int32Array = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int32)
        rows = np.concatenate(kept) if kept else result.hidden[:0]
        x: FloatArray = np.concatenate(
            [pool(rows, cu, pooling, threads=1) for pooling in self._pooling], axis=1
        )
        for layer in self._layers:
            y = gemm(x, layer.weight, layer.bias, activation=layer.activation, threads=1)
            if layer.adds:
                y = y + (x if layer.residual is None else gemm(x, layer.residual, threads=1))
            x = y
        if self._normalize:
            lengths = np.sqrt(np.square(x).sum(axis=1, keepdims=True))
            x = x / np.maximum(lengths, np.float32(1e-12))
        return x
