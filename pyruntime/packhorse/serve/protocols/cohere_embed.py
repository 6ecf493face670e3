"""Cohere's /v2/embed."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, Inputs
from packhorse.serve.http.exchange import Exchange, Reply, json_reply
from packhorse.serve.models.model import ServedModel
from packhorse.serve.openapi.effectless import EMBEDDING
from packhorse.serve.protocols.cut import Cut
from packhorse.serve.protocols.embedding import (
    EMBEDS,
    as_base64,
    check_finite,
    contiguous,
    embedding_task,
)
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


def _texts(fields: Fields, most: int) -> list[str]:
    if fields.get("inputs") is None:
        return fields.texts("texts", most)
    value = fields.get("inputs")
    if not isinstance(value, list):
        fields.wrong("inputs", "a list of objects with content")
    texts = []
    for one in value:
        parts = one.get("content") if isinstance(one, dict) else None
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            fields.wrong("inputs", 'objects {"content": [{"type": "text", "text": ...}]}')
        for part in parts:
            if part.get("type") != "text":
                raise ServeError(
                    "unsupported", f"inputs of type {part.get('type')!r:.40}: not supported"
                )
        if not all(isinstance(part.get("text"), str) for part in parts):
            fields.wrong("inputs", 'objects {"content": [{"type": "text", "text": ...}]}')
        texts.append(" ".join(part["text"] for part in parts))
    return Fields({"inputs": texts}).texts("inputs", most)


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
    model = service.registry.get(fields.optional_text("model"), "embed", EMBEDS)
    texts = _texts(fields, service.settings.max_client_batch_size)
    input_type = fields.choice("input_type", _INPUT_TYPES, "search_document")
    if input_type == "image":
        raise ServeError("unsupported", "input_type image is not supported")
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
    task = embedding_task(
        model,
        Inputs(texts, False, False),
        cut=_cut(fields, model),
        prompt_name=_prompt(model, input_type),
        truncate_dim=fields.integer("output_dimension", 1),
    )
    fields.refuse_rest(EMBEDDING)
    outcome = await exchange.run(model, task, texts, "embed")
    check_finite(outcome.found)
    content = {
        "id": str(uuid.uuid4()),
        "texts": texts,
        "embeddings": await service.on_thread(
            lambda: {one: _written(outcome.found, one) for one in dict.fromkeys(types)}
        ),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": outcome.tokens},
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
