"""OpenAI's protocol for embeddings, and its list of models."""

from __future__ import annotations

from typing import Any

from packhorse.serve.http.checks import Fields, Inputs, check_count
from packhorse.serve.http.exchange import Exchange, Headers, Reply, compute_headers, json_reply
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.registry import AnyServed
from packhorse.serve.models.served import AnyTask
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
from packhorse.serve.protocols.image_embedding import EMBEDS_IMAGES, embed_mixed
from packhorse.serve.protocols.image_fields import Mixed, read_images, read_mixed


def _normalize(fields: Fields) -> bool | None:
    """The field `normalize` of vLLM or `normalized` of Jina; None: as the model does."""
    names = [name for name in ("normalize", "normalized") if fields.get(name) is not None]
    if len(names) > 1:
        fields.wrong(names[1], f"nothing beside {names[0]}")
    return fields.flag(names[0], True) if names else None


def _mixed(exchange: Exchange, fields: Fields) -> tuple[str, Mixed | None]:
    """(name of the field, texts and images in it; None: there are no images). vLLM sends one
    message in place of `input`, infinity says modality."""
    urls = exchange.service.registry.embeds_images(fields.optional_text("model"))
    if fields.get("input") is None and fields.get("messages") is not None:
        value = fields.get("messages")
        if not isinstance(value, list) or len(value) != 1:
            fields.wrong("messages", "one message, which becomes one vector")
        return "messages", read_mixed("messages", value, urls_are_images=urls)
    value = fields.get("input")
    if fields.choice("modality", ("text", "image"), "text") == "image":
        images, single = read_images(fields, "input", exchange.service.settings.max_client_images)
        return "input", Mixed(list(images), single)
    most = exchange.service.settings.max_client_batch_size
    if isinstance(value, list):
        check_count("input", len(value), most)
    return "input", read_mixed("input", value, urls_are_images=urls)


async def _embed_images(exchange: Exchange, fields: Fields, name: str, mixed: Mixed) -> Reply:
    """Answers a request with images."""
    service = exchange.service
    model = service.registry.images(fields.optional_text("model"), "embed_images", EMBEDS_IMAGES)
    encoding = fields.choice("encoding_format", ("float", "base64"), "float")
    truncation = fields.flag("truncate", service.settings.auto_truncate)
    truncate_dim, normalize = fields.integer("dimensions", 1), _normalize(fields)
    prompt_name = fields.optional_text("prompt_name")
    fields.get("truncate_prompt_tokens")  # images are never cut
    fields.refuse_rest(EMBEDDING)

    def make_task(texts: ServedModel, inputs: Inputs) -> AnyTask:
        return embedding_task(
            texts,
            inputs,
            cut=read_cut(fields, texts, truncation),
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
            normalize=normalize,
        )

    found = await embed_mixed(
        exchange,
        model,
        mixed,
        name,
        truncate_dim=truncate_dim,
        normalize=normalize,
        make_task=make_task,
    )
    characters = sum(map(len, mixed.texts))
    headers = compute_headers(exchange, found.outcome, characters, model.device)
    return await _reply(exchange, model.name, found.rows, found.tokens, encoding, headers)


async def embeddings(exchange: Exchange) -> Reply:
    """POST /v1/embeddings."""
    fields = Fields(await exchange.json())
    service = exchange.service
    name, mixed = _mixed(exchange, fields)
    if mixed is not None and mixed.images:
        return await _embed_images(exchange, fields, name, mixed)
    model = service.registry.get(fields.optional_text("model"), "embed", EMBEDS)
    if mixed is None:
        inputs = fields.inputs("input", service.settings.max_client_batch_size)
    else:
        inputs = Inputs(mixed.texts, mixed.single, False)
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
    headers = compute_headers(exchange, outcome, inputs.characters, model.device)
    return await _reply(exchange, model.name, outcome.found, outcome.tokens, encoding, headers)


async def _reply(
    exchange: Exchange, name: str, vectors: Any, tokens: int, encoding: str, headers: Headers
) -> Reply:
    """Vectors of the model of this name, for so many tokens."""
    rows: Any = contiguous(vectors)
    if encoding == "base64":
        check_finite(rows)
        whole = rows
        rows = await exchange.service.on_thread(lambda: [as_base64(row) for row in whole])
    content = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)
        ],
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return vectors_reply(content, [vectors], headers)


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
