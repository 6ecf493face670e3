"""Embeddings of texts, and what becomes of them: fewer dimensions, length 1, smaller types."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from packhorse.names import EmbeddingDtype
from packhorse.result import FloatArray
from packhorse.text.runner import Progress, TextRunner, as_texts
from packhorse.text.settings import choose_prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import EmbedCall

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


class Embedding(TextRunner):
    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Literal["float32"] = ...,
        **options: Unpack[EmbedCall],
    ) -> FloatArray: ...
    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Literal["float16"],
        **options: Unpack[EmbedCall],
    ) -> npt.NDArray[np.float16]: ...
    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Literal["int8", "binary"],
        **options: Unpack[EmbedCall],
    ) -> npt.NDArray[np.int8]: ...
    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: Literal["uint8", "ubinary"],
        **options: Unpack[EmbedCall],
    ) -> npt.NDArray[np.uint8]: ...
    @overload
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        dtype: EmbeddingDtype,
        **options: Unpack[EmbedCall],
    ) -> npt.NDArray[Any]: ...
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        normalize: bool | None = None,
        dtype: EmbeddingDtype = "float32",
        ranges: npt.ArrayLike | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> npt.NDArray[Any]:
        """Embeddings [texts, dims]; [dims] of a single str.

        prompt        goes before every text; "": none
        prompt_name   of one of `self.prompts`. Neither: the model's default one, where it has one
        truncate_dim  only the first dimensions, of models trained for that (Matryoshka); None: as
                      `truncate_dim` of config_sentence_transformers.json says, else all
        normalize     to length 1, after that. None: the model's own embeddings have length 1 where
                      its files say so, and what is cut of them is left as it is, as in
                      sentence-transformers
        dtype         "float32", "float16", "int8", "uint8", "binary" or "ubinary", with `ranges` as
                      `quantize_embeddings` says; but int8 and uint8 without ranges are a ValueError
                      where there are fewer than 100 texts to take them from
        """
        size = self.session.embedding_size
        if truncate_dim is None:
            truncate_dim = self.tokenizer.config.truncate_dim  # more than there are: all of them
        elif not 1 <= truncate_dim <= size:
            raise ValueError(f"truncate_dim {truncate_dim} is not between 1 and {size}")
        before = choose_prompt(self.tokenizer.config, prompt, prompt_name)
        if before and not self.session.config.get("embedding", {}).get("include_prompt", True):
            raise ValueError(
                "embed: this model's pooling leaves the prompt out (include_prompt = false), which "
                'is not supported: pool output "hidden" of the session, or embed with prompt=""'
            )
        # Where ranges are not given, they are those of all embeddings.
        late = dtype in ("int8", "uint8") and ranges is None
        chosen = as_texts(texts)
        if late and isinstance(chosen, Sized):
            _check_sample(len(chosen), dtype)

        def finish(rows: FloatArray) -> npt.NDArray[Any]:
            rows = rows[:, :truncate_dim]
            rows = scale_to_length_1(rows) if normalize else rows
            return rows if late else quantize_embeddings(rows, dtype, ranges)

        parts = [finish(np.empty((0, size), np.float32))]  # checks dtype and ranges, too
        for _, _, result in self._run(
            chosen, ["embedding"], max_length, truncation, progress, prompt=before
        ):
            parts.append(finish(result.embedding))
        found = np.concatenate(parts)
        if late:
            _check_sample(len(found), dtype)
            found = quantize_embeddings(found, dtype)
        return found[0] if isinstance(texts, str) else found
