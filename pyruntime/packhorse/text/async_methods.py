"""The methods of `TextModel` for `await`: each runs in a thread of asyncio's own, where it shares
batches with the others that run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from packhorse.text.checks import Text
from packhorse.text.generation.methods import GeneratingText
from packhorse.text.signatures import shows_as
from packhorse.text.tasks.scores import Pairs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.names import EmbeddingDtype
    from packhorse.result import FloatArray
    from packhorse.text.call_types import EmbedCall, PairCall, PromptCall, ScoreCall

    class _EmbedCall(EmbedCall, total=False):
        dtype: EmbeddingDtype

    class _ClassifyCall(PairCall, total=False):
        top_k: int | None


class AwaitedText(GeneratingText):
    """A coroutine for each method that gives vectors, scores or labels; arguments, results and
    errors are those of the method. One that is cancelled runs to its end, unseen."""

    async def _in_thread(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self, method), *arguments, **options)

    async def embed_async(
        self, texts: str | Iterable[str], **options: Unpack[_EmbedCall]
    ) -> npt.NDArray[Any]:
        """`embed`, for `await`."""
        found: npt.NDArray[Any] = await self._in_thread("embed", texts, **options)
        return found

    async def embed_sparse_async(
        self, texts: str | Iterable[str], **options: Unpack[PromptCall]
    ) -> Any:
        """`embed_sparse`, for `await`."""
        return await self._in_thread("embed_sparse", texts, **options)

    async def embed_tokens_async(
        self, texts: str | Iterable[str], **options: Unpack[PromptCall]
    ) -> Any:
        """`embed_tokens`, for `await`."""
        return await self._in_thread("embed_tokens", texts, **options)

    async def score_async(
        self, query: str, documents: str | Iterable[str], **options: Unpack[ScoreCall]
    ) -> Any:
        """`score`, for `await`."""
        return await self._in_thread("score", query, documents, **options)

    async def score_pairs_async(self, pairs: Pairs, **options: Unpack[ScoreCall]) -> FloatArray:
        """`score_pairs`, for `await`."""
        found: FloatArray = await self._in_thread("score_pairs", pairs, **options)
        return found

    async def classify_async(
        self, texts: str | Iterable[Text], **options: Unpack[_ClassifyCall]
    ) -> Any:
        """`classify`, for `await`."""
        return await self._in_thread("classify", texts, **options)


def show_signatures(model: type[AwaitedText]) -> None:
    """Gives each coroutine of a class the signature of its method."""
    for name in vars(AwaitedText):
        if name.endswith("_async"):
            shows_as(getattr(model, name.removesuffix("_async")))(getattr(AwaitedText, name))
