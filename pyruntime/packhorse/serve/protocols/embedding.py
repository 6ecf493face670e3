"""Embeddings for all protocols: which task a request is, and how vectors are written."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse.names import EmbeddingDtype
from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Inputs
from packhorse.serve.http.exchange import Headers, Reply, json_reply
from packhorse.serve.http.json_parts import to_json
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.served import AnyTask
from packhorse.serve.models.tasks import OfIds
from packhorse.serve.models.weight import MUCH, weight
from packhorse.serve.protocols.cut import Cut
from packhorse.text.runner import TextRunner
from packhorse.text.tasks.embeddings import Embedding

EMBEDS = "an embedding model"


def _embedding(
    runner: TextRunner,
    truncation: bool,
    max_length: int | None,
    prompt_name: str | None,
    truncate_dim: int | None,
    normalize: bool | None,
    dtype: EmbeddingDtype,
) -> Embedding:
    own = bool(runner.session.config.get("embedding", {}).get("normalize"))
    if own and normalize is not False:  # again, where dimensions were cut off
        normalize = None if truncate_dim is None else True
    return Embedding(
        runner,
        prompt=None,
        prompt_name=prompt_name,
        truncate_dim=truncate_dim,
        normalize=normalize,
        dtype=dtype,
        ranges=None,
        max_length=max_length,
        unscaled=normalize is False,
        truncation=truncation,
    )


def _of_ids(runner: TextRunner, **options: Any) -> OfIds:
    task = _embedding(runner, **options)
    return OfIds(runner, task, task.output, options["truncation"], options["max_length"])


def embedding_task(
    model: ServedModel,
    inputs: Inputs,
    *,
    cut: Cut,
    prompt_name: str | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    dtype: EmbeddingDtype = "float32",
) -> AnyTask:
    """Makes the task of embedding. normalize: None: as the model does, and to length 1 again where
    dimensions are cut off such vectors. The other options are those of `TextModel.embed`. Raises
    ServeError."""
    if inputs.ids and prompt_name is not None:
        raise ServeError("validation", "prompt_name goes before texts, and the inputs are ids")
    return model.task(
        _of_ids if inputs.ids else _embedding,
        **cut._asdict(),
        prompt_name=prompt_name,
        truncate_dim=truncate_dim,
        normalize=normalize,
        dtype=dtype,
    )


def as_base64(row: npt.NDArray[Any]) -> str:
    """The bytes of a row, little endian."""
    return base64.b64encode(np.ascontiguousarray(row).data).decode("ascii")


def contiguous(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows that orjson takes."""
    return rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)


def check_finite(rows: npt.NDArray[Any]) -> None:
    """Raises ServeError for rows that are not numbers."""
    if not np.isfinite(rows).all():
        raise ServeError("backend", "the model gave numbers that are not finite")


def vectors_reply(
    content: Any, vectors: Sequence[npt.NDArray[Any]], headers: Headers | None = None
) -> Reply:
    """A reply in which vectors are written. Raises ServeError where they are not numbers."""
    if weight(content) > MUCH:
        for rows in vectors:
            check_finite(rows)
        return json_reply(content, headers=headers)
    body = to_json(content)
    if b"null" in body:  # numbers that are not finite are written so, and this search is fast
        for rows in vectors:
            check_finite(rows)
    return Reply(body, headers=headers)
