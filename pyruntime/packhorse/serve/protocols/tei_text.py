"""The protocol of text-embeddings-inference: tokens, texts of tokens, and what is served."""

from __future__ import annotations

from typing import Any

import packhorse
from packhorse.heads import classifier_of
from packhorse.serve.checks import Fields, are_ids, check_count
from packhorse.serve.exchange import Exchange, Reply, json_reply
from packhorse.serve.model import ServedModel
from packhorse.serve.protocols.effectless import OF_TEXTS
from packhorse.text.settings import choose_prompt
from packhorse.text.tokenizer import TextTokenizer


def _model(exchange: Exchange, name: str | None) -> ServedModel:
    registry = exchange.service.registry
    return registry.named(name) if name else registry.first()


async def tokenize(exchange: Exchange) -> Reply:
    """POST /tokenize: the tokens of each text, and the characters that they stand for."""
    fields = Fields(await exchange.json())
    model = _model(exchange, fields.optional_text("model"))
    exchange.model = model.name
    value = fields.get("inputs")
    if not isinstance(value, str | list):
        fields.wrong("inputs", "a text or a list of texts")
    texts = [value] if isinstance(value, str) else value
    most = exchange.service.settings.max_client_batch_size
    if not all(isinstance(one, str) for one in texts):
        fields.wrong("inputs", "a text or a list of texts")
    check_count("inputs", len(texts), most)
    special = fields.flag("add_special_tokens", True)
    tokenizer = model.text.tokenizer
    name = fields.optional_text("prompt_name")
    fields.refuse_rest(OF_TEXTS)
    prompt = fields.checked(lambda: choose_prompt(tokenizer.config, None, name)) if name else ""
    found = await exchange.service.on_thread(
        lambda: [_tokens(tokenizer, prompt + text, special) for text in texts]
    )
    return json_reply(found)


def _tokens(tokenizer: TextTokenizer, text: str, special: bool) -> list[dict[str, Any]]:
    encoding = tokenizer.backend.encode(text, add_special_tokens=special)
    return [
        {"id": token, "text": word, "special": True, "start": None, "stop": None}
        if is_special
        else {"id": token, "text": text[begin:end], "special": False, "start": begin, "stop": end}
        for token, word, is_special, (begin, end) in zip(
            encoding.ids,
            encoding.tokens,
            encoding.special_tokens_mask,
            encoding.offsets,
            strict=True,
        )
    ]


async def decode(exchange: Exchange) -> Reply:
    """POST /decode: the texts of token ids."""
    fields = Fields(await exchange.json())
    model = _model(exchange, fields.optional_text("model"))
    exchange.model = model.name
    value = fields.get("ids")
    if not isinstance(value, list):
        fields.wrong("ids", "a list of ids, or of lists of ids")
    check_count("ids", len(value), exchange.service.settings.payload_limit)
    rows = [value] if are_ids(value) else value
    if not all(isinstance(row, list) and are_ids(row) for row in rows):
        fields.wrong("ids", "a list of ids, or of lists of ids")
    check_count("ids", len(rows), exchange.service.settings.max_client_batch_size)
    skip = fields.flag("skip_special_tokens", True)
    fields.refuse_rest(OF_TEXTS)
    tokenizer = model.text.tokenizer
    found = await exchange.service.on_thread(
        lambda: [tokenizer.decode(row, skip_special=skip) for row in rows]
    )
    return json_reply(found)


def _type_of(model: ServedModel) -> dict[str, Any]:
    config = model.text.session.config
    labels = {str(i): label for i, label in enumerate(model.text.labels)}
    classifier = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
    if "score" in model.methods:
        return {"reranker": classifier}
    if classifier_of(config):
        return {"classifier": classifier}
    if model.generates:
        return {"generation": {"max_context": model.text.session.max_seqlen}}
    if "embed_sparse" in model.methods and "embed" not in model.methods:
        return {"embedding": {"pooling": "splade"}}
    return {"embedding": {"pooling": _pooling(config.get("embedding", {}).get("pooling", "mean"))}}


def _pooling(pooling: Any) -> str:
    return pooling if isinstance(pooling, str) else "+".join(pooling)


async def info(exchange: Exchange) -> Reply:
    """GET /info: the first model, or the one that ?model= names, and the server's limits."""
    query = exchange.query()
    model = _model(exchange, query.get("model"))
    settings = exchange.service.settings
    session = model.text.session
    content = {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": session.dtype,
        "model_type": _type_of(model),
        "max_concurrent_requests": settings.max_queue_tokens,
        "max_input_length": model.text.max_length,
        "max_batch_tokens": session.max_tokens,
        "max_batch_requests": session.max_sequences,
        "max_client_batch_size": settings.max_client_batch_size,
        "auto_truncate": settings.auto_truncate,
        "tokenization_workers": exchange.service.tokenization_workers,
        "version": packhorse.__version__,
        "sha": None,
        "docker_label": None,
        "model_path": model.path,
        "device": [replica.session.device for replica in model.replicas],
        "methods": sorted(model.methods),
        "models": [one.name for one in exchange.service.registry.models()],
    }
    return json_reply(content)
