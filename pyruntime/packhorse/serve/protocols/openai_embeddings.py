"""OpenAI's protocol for embeddings, and its list of models."""

from __future__ import annotations

from typing import Any

from packhorse.serve.http.checks import Fields
from packhorse.serve.http.exchange import Exchange, Reply, compute_headers, json_reply
from packhorse.serve.models.registry import AnyServed
from packhorse.serve.openapi.effectless import EMBEDDING
from packhorse.serve.protocols.cut import read_cut
from packhorse.serve.protocols.embedding import (
    EMBEDS,
    as_base64,
    check_finite,
    contiguous,
    embedding_task,
    vectors_reply,
)


def _normalize(fields: Fields) -> bool | None:
    """The field `normalize` of vLLM or `normalized` of Jina; None: as the model does."""
    names = [name for name in ("normalize", "normalized") if fields.get(name) is not None]
    if len(names) > 1:
        fields.wrong(names[1], f"nothing beside {names[0]}")
    return fields.flag(names[0], True) if names else None


async def embeddings(exchange: Exchange) -> Reply:
    """POST /v1/embeddings."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "embed", EMBEDS)
    inputs = fields.inputs("input", service.settings.max_client_batch_size)
    encoding = fields.choice("encoding_format", ("float", "base64"), "float")
    truncation = fields.flag("truncate", service.settings.auto_truncate)
    task = embedding_task(
        model,
        inputs,
        cut=read_cut(fields, model, truncation),
        prompt_name=fields.optional_text("prompt_name"),
        truncate_dim=fields.integer("dimensions", 1),
        normalize=_normalize(fields),
    )
    fields.refuse_rest(EMBEDDING)
    outcome = await exchange.run(model, task, inputs.items, "embed", single=inputs.single)
    rows: Any = contiguous(outcome.found)
    if encoding == "base64":
        check_finite(rows)
        vectors = rows
        rows = await service.on_thread(lambda: [as_base64(row) for row in vectors])
    content = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)
        ],
        "model": model.name,
        "usage": {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens},
    }
    headers = compute_headers(exchange, outcome, inputs.characters, model.device)
    return vectors_reply(content, [outcome.found], headers)


def _about(name: str, created: int, parent: str | None, root: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "packhorse",
        "parent": parent,
        "root": root,
    }


def _listed(model: AnyServed) -> list[dict[str, Any]]:
    """A model, and its adapters."""
    return [
        _about(model.name, model.created, None, model.path),
        *(_about(one.name, one.created, model.name, one.path) for one in model.adapters.values()),
    ]


async def models(exchange: Exchange) -> Reply:
    """GET /v1/models."""
    found = [one for model in exchange.service.registry.models() for one in _listed(model)]
    return json_reply({"object": "list", "data": found})


async def model(exchange: Exchange) -> Reply:
    """GET /v1/models/{name}."""
    name: str = exchange.scope["rest"]
    listed = _listed(exchange.service.registry.named(name))
    return json_reply(next(one for one in listed if one["id"] == name))
