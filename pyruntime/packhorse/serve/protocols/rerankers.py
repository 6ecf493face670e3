"""The protocols of rerankers: Jina's and vLLM's /v1/rerank, vLLM's /score, Cohere's /v2/rerank."""

from __future__ import annotations

import uuid
from typing import Any

from packhorse.serve.http.checks import Fields, check_count
from packhorse.serve.http.exchange import Exchange, Reply, compute_headers, json_reply
from packhorse.serve.models.model import ServedModel
from packhorse.serve.openapi.effectless import RANKING
from packhorse.serve.protocols.cut import Cut, read_cut
from packhorse.serve.protocols.ranking import RERANKS, rank, score


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


def _results(ranked: list[tuple[int, float]], texts: list[str] | None) -> list[dict[str, Any]]:
    """Results of an answer, with the texts where they are wanted."""
    return [
        {"index": i, "relevance_score": value}
        | ({} if texts is None else {"document": {"text": texts[i]}})
        for i, value in ranked
    ]


async def rerank(exchange: Exchange) -> Reply:
    """POST /v1/rerank."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "score", RERANKS)
    texts = _documents(fields, service.settings.max_client_batch_size)
    query = fields.text("query")
    with_text = fields.flag("return_documents", True)
    cut, raw = _cut(exchange, fields, model), _raw(fields)
    top_n = fields.integer("top_n", 0) or None
    most = fields.integer("max_tokens_per_doc", 0) or None
    fields.refuse_rest(RANKING)
    shortened = await _shortened(exchange, model, texts, most)
    ranked, outcome = await rank(exchange, model, query, shortened, cut=cut, raw=raw, top_n=top_n)
    content = {
        "id": f"rerank-{exchange.request_id}",
        "model": model.name,
        "results": _results(ranked, texts if with_text else None),
        "usage": {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens},
    }
    characters = len(query) * len(texts) + sum(map(len, texts))
    headers = compute_headers(exchange, outcome, characters, model.device)
    return json_reply(content, headers=headers)


def _cut(exchange: Exchange, fields: Fields, model: ServedModel) -> Cut:
    """Reads where texts are cut, by Jina's field or vLLM's."""
    truncation = fields.flag("truncation", exchange.service.settings.auto_truncate)
    return read_cut(fields, model, truncation)


def _raw(fields: Fields) -> bool:
    """True where scores are to be logits, by Infinity's name or one of vLLM's."""
    asked = {
        "raw_scores": fields.flag("raw_scores", False),
        **{name: not fields.flag(name, True) for name in ("use_activation", "activation")},
    }
    given = [name for name in asked if fields.get(name) is not None]
    for name in given[1:]:
        if asked[name] != asked[given[0]]:
            fields.wrong(name, f"it to say the same as {given[0]}")
    return any(asked.values())


async def _shortened(
    exchange: Exchange, model: ServedModel, texts: list[str], most: int | None
) -> list[str]:
    """Texts up to the end of their first `most` tokens; None: whole."""
    if most is None or most >= model.text.max_length:  # beyond it the model's own limit counts
        return texts
    encode = model.text.tokenizer.backend.encode

    def shorten(text: str) -> str:
        places = encode(text, add_special_tokens=False).offsets
        return text if len(places) <= most else text[: places[most - 1][1]]

    return await exchange.service.on_thread(lambda: [shorten(text) for text in texts])


async def cohere_rerank(exchange: Exchange) -> Reply:
    """POST /v2/rerank: texts that are too long are cut, as Cohere does."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "score", RERANKS)
    texts = _documents(fields, service.settings.max_client_batch_size)
    query, top_n = fields.text("query"), fields.integer("top_n", 1)
    with_text = fields.flag("return_documents", False)
    most = fields.integer("max_tokens_per_doc", 1)
    fields.refuse_rest(RANKING)
    shortened = await _shortened(exchange, model, texts, most)
    ranked, outcome = await rank(exchange, model, query, shortened, cut=Cut(True), top_n=top_n)
    content = {
        "id": str(uuid.uuid4()),
        "results": _results(ranked, texts if with_text else None),
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
    cut, raw = _cut(exchange, fields, model), _raw(fields)
    fields.refuse_rest(RANKING)
    outcome = await score(exchange, model, pairs, cut=cut, raw=raw)
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
