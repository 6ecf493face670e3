"""The protocols of rerankers: Jina's and vLLM's /v1/rerank, vLLM's /score, Cohere's /v2/rerank."""

from __future__ import annotations

import uuid
from typing import Any

from packhorse.serve.checks import Fields, check_count
from packhorse.serve.exchange import Exchange, Reply, compute_headers, json_reply
from packhorse.serve.ranking import RERANKS, rank, score


def _documents(fields: Fields, most: int) -> list[str]:
    """Texts, or objects with a text."""
    value = fields.get("documents")
    if not isinstance(value, list):
        fields.wrong("documents", "a list of texts")
    check_count("documents", len(value), most)
    texts: list[Any] = [one.get("text") if isinstance(one, dict) else one for one in value]
    if not all(isinstance(one, str) for one in texts):
        fields.wrong("documents", 'a list of texts, or of objects {"text": ...}')
    return texts


async def rerank(exchange: Exchange) -> Reply:
    """POST /v1/rerank."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "score", RERANKS)
    texts = _documents(fields, service.settings.max_client_batch_size)
    query = fields.text("query")
    with_text = fields.flag("return_documents", True)
    ranked, outcome = await rank(
        exchange,
        model,
        query,
        texts,
        truncation=_truncation(exchange, fields),
        top_n=fields.integer("top_n", 0) or None,
    )
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": value, "document": {"text": texts[i]}}
        if with_text
        else {"index": i, "relevance_score": value}
        for i, value in ranked
    ]
    content = {
        "id": f"rerank-{exchange.request_id}",
        "model": model.name,
        "results": results,
        "usage": {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens},
    }
    characters = len(query) * len(texts) + sum(map(len, texts))
    headers = compute_headers(exchange, outcome, characters, model.device)
    return json_reply(content, headers=headers)


def _truncation(exchange: Exchange, fields: Fields) -> bool:
    """As asked, by Jina's name or vLLM's."""
    if fields.get("truncate_prompt_tokens") is not None:
        fields.refuse("truncate_prompt_tokens")
    return fields.flag("truncation", exchange.service.settings.auto_truncate)


async def cohere_rerank(exchange: Exchange) -> Reply:
    """POST /v2/rerank: texts that are too long are cut, as Cohere does."""
    fields = Fields(await exchange.json())
    fields.refuse("rank_fields")
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "score", RERANKS)
    texts = _documents(fields, service.settings.max_client_batch_size)
    fields.integer("max_tokens_per_doc", 1)  # texts are cut where the model's limit is
    ranked, outcome = await rank(
        exchange,
        model,
        fields.text("query"),
        texts,
        truncation=True,
        top_n=fields.integer("top_n", 1),
    )
    content = {
        "id": str(uuid.uuid4()),
        "results": [{"index": i, "relevance_score": value} for i, value in ranked],
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": outcome.tokens},
        },
    }
    return json_reply(content)


def _sides(fields: Fields, most: int) -> list[tuple[str, str]]:
    """One text for many, or as many as there are of the other."""
    sides = []
    for name, other in (("text_1", "queries"), ("text_2", "documents")):
        used = name if fields.get(name) is not None else other
        value = fields.get(used)
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
            fields.wrong(name if used is other and value is None else used, "a text or several")
        check_count(used, len(texts), most)
        sides.append(texts)
    first, second = sides
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        fields.wrong("text_1", f"one text, or {len(second)} of them, as many as of text_2")
    return list(zip(first, second, strict=True))


async def scores(exchange: Exchange) -> Reply:
    """POST /score, /v1/score: the score of each pair of text_1 and text_2."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "score", RERANKS)
    pairs = _sides(fields, service.settings.max_client_batch_size)
    outcome = await score(
        exchange, model, pairs, truncation=_truncation(exchange, fields), raw=False
    )
    content = {
        "id": f"score-{exchange.request_id}",
        "object": "list",
        "created": exchange.created,
        "model": model.name,
        "data": [
            {"index": i, "object": "score", "score": value}
            for i, value in enumerate(outcome.found.tolist())
        ],
        "usage": {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens},
    }
    characters = sum(len(one) + len(other) for one, other in pairs)
    headers = compute_headers(exchange, outcome, characters, model.device)
    return json_reply(content, headers=headers)
