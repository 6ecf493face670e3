"""Embeddings of texts, and what becomes of them: fewer dimensions, length 1, smaller types."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse.load_arguments import is_count
from packhorse.names import EmbeddingDtype, OutputName
from packhorse.progress_bar import Progress
from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text, as_texts
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner
from packhorse.text.settings import choose_prompt
from packhorse.text.tasks.unpooled_prompts import UnpooledPrompt

MIN_SAMPLE = 100  # embeddings whose ranges say something about others
_HOW_TO_SAMPLE = (
    "give ranges=np.stack([e.min(axis=0), e.max(axis=0)]) of float32 embeddings e of some thousand "
    "typical texts, the same for all embeddings that are compared"
)
DTYPES = ("float32", "float16", "int8", "uint8", "binary", "ubinary")


def scale_to_length_1(embeddings: FloatArray) -> FloatArray:
    """Rows divided by their Euclidean lengths; those shorter than 1e-12, by that."""
    lengths = np.sqrt(np.square(embeddings).sum(axis=-1, keepdims=True))
    scaled: FloatArray = embeddings / np.maximum(lengths, np.float32(1e-12))
    return scaled


def quantize_embeddings(
    embeddings: FloatArray, dtype: EmbeddingDtype, ranges: npt.ArrayLike | None = None
) -> npt.NDArray[Any]:
    """`embeddings` [N, dims] in a smaller type, as sentence-transformers' function of this name.

    "float32", "float16"  the nearest values
    "uint8"               floor(255 (x - low) / (high - low)), within 0 and 255
    "int8"                the same, less 128
    "ubinary"             [N, ceil(dims / 8)] uint8: a bit for each x > 0, the first one highest
    "binary"              the same less 128, int8

    ranges  of uint8 and int8: (low, high) of each dimension, [2, dims]. None: those of `embeddings`
            themselves, of which there must be two at least; below 100 a UserWarning says that they
            are too few

    Raises ValueError.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r:.80} is not one of {', '.join(DTYPES)}")
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or not np.issubdtype(embeddings.dtype, np.floating):
        raise ValueError(
            f"embeddings are {embeddings.dtype}{list(embeddings.shape)}, expected floats [N, dims]"
        )
    if ranges is not None and dtype not in ("int8", "uint8"):
        raise ValueError(f"dtype {dtype!r} takes no ranges")
    if dtype in ("float32", "float16"):
        return embeddings.astype(dtype, copy=False)
    if dtype in ("binary", "ubinary"):
        bits: npt.NDArray[np.uint8] = np.packbits(embeddings > 0, axis=-1)
        return bits if dtype == "ubinary" else (bits ^ 0x80).view(np.int8)
    if ranges is None and 1 < len(embeddings) < MIN_SAMPLE:
        warnings.warn(
            f"the ranges of {len(embeddings)} embeddings say little about others: {_HOW_TO_SAMPLE}",
            stacklevel=2,
        )
    low, high = _ranges(embeddings, ranges)
    steps = (high - low) / np.float32(255)
    steps[steps == 0] = 1
    levels: npt.NDArray[np.uint8] = np.clip(np.floor((embeddings - low) / steps), 0, 255).astype(
        np.uint8
    )
    return levels if dtype == "uint8" else (levels ^ 0x80).view(np.int8)


def _ranges(embeddings: FloatArray, ranges: npt.ArrayLike | None) -> FloatArray:
    count, dims = embeddings.shape
    if ranges is None:
        if count == 0:
            return np.zeros((2, dims), np.float32)
        if count == 1:
            raise ValueError(f"one embedding has no ranges: {_HOW_TO_SAMPLE}")
        return np.stack([embeddings.min(axis=0), embeddings.max(axis=0)]).astype(np.float32)
    given = np.asarray(ranges, np.float32)
    if given.shape != (2, dims) or not (given[0] <= given[1]).all():
        raise ValueError(
            f"ranges have shape {given.shape}, expected (2, {dims}): the lowest and the highest "
            "value of each dimension"
        )
    return given


def _check_sample(count: int, dtype: str) -> None:
    if 0 < count < MIN_SAMPLE:
        raise ValueError(
            f'embed: dtype="{dtype}" without ranges takes them from the texts of this call, and '
            f"{count} are too few, expected {MIN_SAMPLE} or more: {_HOW_TO_SAMPLE}"
        )


def _pooling_alone(config: Mapping[str, Any]) -> list[Any] | None:
    """The poolings of a model whose own embeddings have length 1, which are to be done without
    that; None where its embeddings are as they are wanted."""
    embedding = config.get("embedding", {})
    if not embedding.get("normalize"):
        return None
    if embedding.get("dense"):
        raise ValueError(
            "normalize is false, but this model's embeddings have length 1 and come from dense "
            "layers after pooling: load it with normalize = false to have others"
        )
    pooling = embedding.get("pooling", "mean")
    return [pooling] if isinstance(pooling, str) else list(pooling)


class Embedding:
    """Texts to embeddings; the arguments are those of `TextModel.embed`.

    unscaled  embeddings are as they come out of the pooling, also where the model's files say that
              their length is 1
    """

    def __init__(
        self,
        runner: TextRunner,
        *,
        prompt: str | None,
        prompt_name: str | None,
        truncate_dim: int | None,
        normalize: bool | None,
        dtype: EmbeddingDtype,
        ranges: npt.ArrayLike | None,
        max_length: int | None,
        truncation: bool,
        unscaled: bool = False,
    ) -> None:
        config = runner.tokenizer.config
        self._runner = runner
        self._size = runner.encoder.embedding_size
        if truncate_dim is None:
            truncate_dim = config.truncate_dim  # more than there are: all of them
        elif not is_count(truncate_dim) or not 1 <= truncate_dim <= self._size:
            raise ValueError(f"truncate_dim {truncate_dim!r:.80} is not between 1 and {self._size}")
        self._truncate_dim = truncate_dim
        self._prompt = choose_prompt(config, prompt, prompt_name)
        self._unpooled: UnpooledPrompt | None = None
        config_of_pooling = runner.session.config.get("embedding", {})
        if self._prompt and not config_of_pooling.get("include_prompt", True):
            if unscaled:
                raise ValueError("normalize is false, but this model's pooling leaves prompts out")
            session = runner.encoder
            self._unpooled = UnpooledPrompt(
                session.config, session.layers_after_pooling(), runner.tokenizer
            )
            self._left_out = self._unpooled.size(self._prompt)
        self._normalize = normalize
        self._pooling = _pooling_alone(runner.session.config) if unscaled else None
        alone = self._pooling is None and self._unpooled is None
        self.output: OutputName = "embedding" if alone else "hidden"
        self._dtype = dtype
        self._ranges = ranges
        # Ranges that are not given are those of all embeddings.
        self._late = dtype in ("int8", "uint8") and ranges is None
        self._max_length = runner.longest(max_length)
        self._truncation = truncation

    def prepare(self, texts: list[Text], first: int) -> tuple[Request, None]:
        tokens = self._runner.encode(
            texts, first, self._max_length, truncation=self._truncation, prompt=self._prompt
        )
        ids = self._runner.filled(tokens.ids)
        return self._runner.request(ids, tokens.type_ids, self.output), None

    def finish(self, _texts: object, _kept: None, result: RunResult) -> npt.NDArray[Any]:
        if self._unpooled is not None:
            return self._shrink(self._unpooled.embed(result, self._left_out))
        if self._pooling is None:
            return self._shrink(result.embedding)
        from packhorse.ops.rowwise import pool

        pools = [
            pool(result.hidden, result.cu_seqlens, pooling, threads=1) for pooling in self._pooling
        ]
        return self._shrink(np.concatenate(pools, axis=1))

    def _shrink(self, rows: FloatArray) -> npt.NDArray[Any]:
        rows = rows[:, : self._truncate_dim]
        rows = scale_to_length_1(rows) if self._normalize else rows
        if self._late or (self._dtype == "float32" and self._ranges is None):
            return rows
        return quantize_embeddings(rows, self._dtype, self._ranges)

    def run(self, texts: str | Iterable[str], progress: Progress | None) -> npt.NDArray[Any]:
        chosen = as_texts(texts)
        if self._late and isinstance(chosen, Sized):
            _check_sample(len(chosen), self._dtype)
        # The empty part checks dtype and ranges, too.
        parts = [self._shrink(np.empty((0, self._size), np.float32))]
        parts += self._runner.results(self, chosen, progress)
        found = np.concatenate(parts)
        if self._late:
            _check_sample(len(found), self._dtype)
            found = quantize_embeddings(found, self._dtype)
        return found[0] if isinstance(texts, str) else found
