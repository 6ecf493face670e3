"""Embeddings of images, and of texts beside them, for all protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from packhorse.result import FloatArray
from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Inputs
from packhorse.serve.http.exchange import Exchange
from packhorse.serve.models.images import ImageReading, ServedImages
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.served import AnyTask, Outcome
from packhorse.serve.protocols.image_fields import Mixed, check_images
from packhorse.text.tasks.embeddings import scale_to_length_1

EMBEDS_IMAGES = "an embedding model of images"
MakeTask = Callable[[ServedModel, Inputs], AnyTask]


class Embedded(NamedTuple):
    """Vectors of images and texts, in order.

    tokens   of the texts, and patches of the images
    outcome  of the last of the two
    """

    rows: FloatArray
    tokens: int
    images: int
    outcome: Outcome


def _shape(
    model: ServedImages, truncate_dim: int | None, normalize: bool | None
) -> Callable[[FloatArray], FloatArray]:
    """Makes vectors of the session's rows, as a request asks for. Raises ServeError."""
    session = model.session
    own = bool(session.config.get("embedding", {}).get("normalize"))
    columns = session.outputs["embedding"].columns
    if own and normalize is False:
        raise ServeError(
            "unsupported", "normalize=false: embeddings of this model have length 1 anyway"
        )
    if truncate_dim is not None and truncate_dim > columns:
        raise ServeError(
            "validation", f"dimensions is {truncate_dim}, but embeddings have {columns} dimensions"
        )
    again = truncate_dim is not None if own else bool(normalize)

    def shape(rows: FloatArray) -> FloatArray:
        cut = rows[:, :truncate_dim]
        return scale_to_length_1(cut) if again else cut

    return shape


async def embed_mixed(
    exchange: Exchange,
    model: ServedImages,
    mixed: Mixed,
    name: str,
    *,
    truncate_dim: int | None,
    normalize: bool | None,
    make_task: MakeTask,
) -> Embedded:
    """The vectors of images and texts. Raises ServeError.

    name       of their field
    make_task  makes the task of the texts
    """
    images, texts = mixed.images, mixed.texts
    check_images(exchange, name, images)
    shape = _shape(model, truncate_dim, normalize)
    text_task = make_task(model.required_texts, Inputs(texts, False, False)) if texts else None
    found = await exchange.fetched(images)
    reading = ImageReading(model, "embedding", shape)
    outcome = await exchange.run(model, reading, found, "embed", single=mixed.single)
    exchange.service.metrics.saw(model.name, len(images))
    tokens, vectors = outcome.tokens, outcome.found
    rows = vectors
    if text_task is not None:
        outcome = await exchange.run(model.required_texts, text_task, texts, "embed")
        tokens += outcome.tokens
        rows = np.empty((len(mixed.items), vectors.shape[1]), np.float32)
        are_texts = np.array([isinstance(one, str) for one in mixed.items])
        rows[are_texts], rows[~are_texts] = outcome.found, vectors
    return Embedded(rows, tokens, len(images), outcome)
