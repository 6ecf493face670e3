"""The protocol of text-embeddings-inference: tokens, texts of tokens, and what is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import packhorse
from packhorse.heads import classifier_of
from packhorse.serve.http.checks import Fields, are_ids, check_count
from packhorse.serve.http.exchange import Exchange, Reply, json_reply, parts_reply
from packhorse.serve.http.json_parts import to_json
from packhorse.serve.models.images import ServedImages
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.registry import AnyServed
from packhorse.serve.openapi.effectless import OF_TEXTS
from packhorse.text.giving_up import checkpoint
from packhorse.text.settings import choose_prompt
from packhorse.text.tokenization.tokenizer import TextTokenizer

_TOKENS_AT_ONCE = 4096  # JSON of so many is written in a millisecond or two


def _model(exchange: Exchange, name: str | None) -> AnyServed:
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
    written = await exchange.on_thread(
        lambda: [_tokens(tokenizer, prompt + text, i, special) for i, text in enumerate(texts)]
    )
    return parts_reply([b"[", *_with_commas(written), b"]"])


def _with_commas(rows: list[list[bytes]]) -> Iterator[bytes]:
    for i, row in enumerate(rows):
        yield from ([b","] if i else [])
        yield from row


def _tokens(tokenizer: TextTokenizer, text: str, number: int, special: bool) -> list[bytes]:
    """The tokens of a text as JSON, in parts."""
    (tokens,) = tokenizer.read([text], first=number, pairs=False)
    if not special:
        tokens = tokens.take(tokens.parts >= 0)
    parts = [b"["]
    for begin in range(0, len(tokens.ids), _TOKENS_AT_ONCE):
        checkpoint()
        some = tokens.take(slice(begin, begin + _TOKENS_AT_ONCE))
        rows = zip(*(array.tolist() for array in some), strict=True)
        content = [
            {"id": token, "text": text[start:stop], "special": False, "start": start, "stop": stop}
            if part >= 0
            else {
                "id": token,
                "text": tokenizer.token_of(token),
                "special": True,
                "start": None,
                "stop": None,
            }
            for token, _, part, _, start, stop in rows
        ]
        parts += [*([b","] if begin else []), to_json(content)[1:-1]]
    return [*parts, b"]"]


async def decode(exchange: Exchange) -> Reply:
    """POST /decode: the texts of token ids."""
    fields = Fields(await exchange.json())
    model = _model(exchange, fields.optional_text("model"))
    exchange.model = model.name
    value = fields.get("ids")
    if not isinstance(value, list):
        fields.wrong("ids", "a list of ids, or of lists of ids")
    check_count("ids", len(value), exchange.service.settings.max_body_values)
    rows = [value] if are_ids(value) else value
    if not all(isinstance(row, list) and are_ids(row) for row in rows):
        fields.wrong("ids", "a list of ids, or of lists of ids")
    check_count("ids", len(rows), exchange.service.settings.max_client_batch_size)
    skip = fields.flag("skip_special_tokens", True)
    fields.refuse_rest(OF_TEXTS)
    tokenizer = model.text.tokenizer
    found = await exchange.on_thread(
        lambda: [tokenizer.decode(row, skip_special=skip) for row in rows]
    )
    return json_reply(found)


def longest_input(model: AnyServed) -> int:
    """Tokens of the longest text or, where no texts are taken, patches of the largest image, or
    positions of the decoder of a model of speech."""
    has_texts = isinstance(model, ServedImages) and model.texts is not None
    takes_texts = has_texts or isinstance(model, ServedModel)
    return model.text.max_length if takes_texts else int(model.session.max_seqlen)


def _type_of(model: AnyServed) -> dict[str, Any]:
    config = model.session.config
    labels = {str(i): label for i, label in enumerate(model.session.labels)}
    classifier = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
    if "score" in model.methods:
        return {"reranker": classifier}
    if classifier_of(config):
        return {"classifier": classifier}
    if model.generates or "transcribe" in model.methods:
        return {"generation": {"max_context": model.session.max_seqlen}}
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
    session = model.session
    content = {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": session.dtype,
        "model_type": _type_of(model),
        "max_concurrent_requests": settings.max_queue_tokens,
        "max_input_length": longest_input(model),
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
