"""Cohere's /v2/embed."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, Inputs, check_count
from packhorse.serve.http.exchange import Exchange, Reply, json_reply
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.served import AnyTask
from packhorse.serve.openapi.effectless import EMBEDDING
from packhorse.serve.protocols.cut import Cut
from packhorse.serve.protocols.embedding import (
    EMBEDS,
    as_base64,
    check_finite,
    contiguous,
    embedding_task,
)
from packhorse.serve.protocols.image_embedding import EMBEDS_IMAGES, embed_mixed
from packhorse.serve.protocols.image_fields import Item, Mixed, read_images, read_mixed
from packhorse.text.tasks.embeddings import quantize_embeddings

_TYPES = ("float", "base64", "binary", "ubinary")
_INPUT_TYPES = ("search_document", "search_query", "classification", "clustering", "image")
# Type of input -> names of prompts that stand for it, among those that models come with.
_PROMPTS = {
    "search_query": ("query", "search_query"),
    "search_document": ("document", "passage", "search_document"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


_CONTENT = 'objects {"content": [{"type": "text", "text": ...}]}, or with one image_url'


def _inputs(fields: Fields, most: int) -> tuple[str, Mixed]:
    """(name of the field, the texts and images in it)"""
    if fields.get("images"):
        images, _ = read_images(fields, "images", most)
        return "images", Mixed(list(images))
    if fields.get("inputs") is None:
        return "texts", Mixed(list(fields.texts("texts", most)))
    value = fields.get("inputs")
    if not isinstance(value, list):
        fields.wrong("inputs", "a list of objects with content")
    check_count("inputs", len(value), most)
    return "inputs", Mixed([_input(fields, one, f"inputs[{i}]") for i, one in enumerate(value)])


def _input(fields: Fields, one: Any, where: str) -> Item:
    parts = one.get("content") if isinstance(one, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        fields.wrong("inputs", _CONTENT)
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    if len(texts) < len(parts) and len(parts) == 1 and parts[0].get("type") == "image_url":
        found = read_mixed(where, one, urls_are_images=True)
        assert found is not None
        return found.items[0]
    for part in parts:
        if part.get("type") != "text":
            beside = ", beside others," if part.get("type") == "image_url" else ""
            raise ServeError(
                "unsupported", f"inputs of type {part.get('type')!r:.40}{beside} are not supported"
            )
    if not all(isinstance(text, str) for text in texts):
        fields.wrong("inputs", _CONTENT)
    return " ".join(map(str, texts))


def _prompt(model: ServedModel, input_type: str) -> str | None:
    prompts = model.text.prompts
    return next((name for name in _PROMPTS.get(input_type, ()) if name in prompts), None)


def _cut(fields: Fields, model: ServedModel) -> Cut:
    side = fields.choice("truncate", ("NONE", "START", "END"), "END")
    own = "START" if model.text.tokenizer.side == "left" else "END"
    if fields.get("truncate") is not None and side not in ("NONE", own):
        fields.refuse("truncate", f'"{side}" of this model, whose texts are cut as "{own}" says')
    most = fields.integer("max_tokens", 1)
    return Cut(side != "NONE", None if most is None else min(most, model.text.max_length))


async def embed(exchange: Exchange) -> Reply:
    """POST /v2/embed. A type of input is written as the model's prompt for it, if it has one."""
    fields = Fields(await exchange.json())
    service = exchange.service
    name, mixed = _inputs(fields, service.settings.max_client_batch_size)
    texts = mixed.texts
    input_type = fields.choice("input_type", _INPUT_TYPES, "search_document")
    if input_type == "image" and texts:
        fields.wrong("input_type", "another type: there are texts")
    types = fields.get("embedding_types") or ["float"]
    if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
        fields.wrong("embedding_types", "a list of types")
    for one in types:
        if one not in _TYPES:
            raise ServeError(
                "unsupported",
                f"embedding_types: {one!r:.40} is not supported, but: {', '.join(_TYPES)}",
                parameter="embedding_types",
            )
    truncate_dim = fields.integer("output_dimension", 1)

    def make_task(model: ServedModel, inputs: Inputs) -> AnyTask:
        return embedding_task(
            model,
            inputs,
            cut=_cut(fields, model),
            prompt_name=_prompt(model, input_type),
            truncate_dim=truncate_dim,
        )

    asked = fields.optional_text("model")
    if mixed.images:
        of_images = service.registry.images(asked, "embed_images", EMBEDS_IMAGES)
        for one in ("truncate", "max_tokens"):
            fields.get(one)  # images are never cut
        fields.refuse_rest(EMBEDDING)
        found = await embed_mixed(
            exchange,
            of_images,
            mixed,
            name,
            truncate_dim=truncate_dim,
            normalize=None,
            make_task=make_task,
        )
        vectors = found.rows
        billed = {"images": found.images, "input_tokens": found.tokens}
    else:
        model = service.registry.get(asked, "embed", EMBEDS)
        task = make_task(model, Inputs(texts, False, False))
        fields.refuse_rest(EMBEDDING)
        outcome = await exchange.run(model, task, texts, "embed")
        vectors, billed = outcome.found, {"input_tokens": outcome.tokens}
    check_finite(vectors)
    content = {
        "id": str(uuid.uuid4()),
        "texts": texts,
        "embeddings": await service.on_thread(
            lambda: {one: _written(vectors, one) for one in dict.fromkeys(types)}
        ),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": billed,
        },
        "response_type": "embeddings_by_type",
    }
    return json_reply(content)


def _written(vectors: np.ndarray[Any, Any], kind: str) -> Any:
    if kind == "float":
        return contiguous(vectors)
    if kind == "base64":
        return [as_base64(row) for row in vectors]
    packed: Any = "binary" if kind == "binary" else "ubinary"
    return contiguous(quantize_embeddings(vectors, packed))
