"""The protocol of text-embeddings-inference: what models do with texts.

Every route takes a field "model", which that protocol does not have: the name of a model, where the
first one that suits the route is not meant.
"""

from __future__ import annotations

from typing import Any

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, Inputs, check_count
from packhorse.serve.http.exchange import Exchange, Reply, compute_headers, json_reply
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.registry import AnyServed
from packhorse.serve.models.served import AnyTask
from packhorse.serve.models.tasks import HiddenStates, OfIds, Predictions
from packhorse.serve.openapi.effectless import EMBEDDING, OF_TEXTS, RANKING
from packhorse.serve.protocols.cut import Cut
from packhorse.serve.protocols.embedding import EMBEDS, contiguous, embedding_task, vectors_reply
from packhorse.serve.protocols.ranking import RERANKS, rank
from packhorse.text.runner import TextRunner
from packhorse.text.tasks.embeddings import scale_to_length_1
from packhorse.text.tasks.sparse import SparseEmbedding

PREDICTS = "a classifier of texts"
SPARSE = "a model of sparse embeddings"
_MOST_NUMBERS = 20_000_000  # in one answer: 200 MB of JSON


def truncation_of(exchange: Exchange, fields: Fields, model: ServedModel) -> bool:
    """True if texts that are too long are cut."""
    own = model.text.tokenizer.side
    side = fields.choice("truncation_direction", ("Left", "Right", "left", "right"), own)
    if side.lower() != own:
        fields.refuse(
            "truncation_direction",
            f'"{side}" of this model, whose tokenizer cuts texts on the {own}',
        )
    return fields.flag("truncate", exchange.service.settings.auto_truncate)


def _inputs(exchange: Exchange, fields: Fields) -> Inputs:
    return fields.inputs("inputs", exchange.service.settings.max_client_batch_size)


async def embed(exchange: Exchange) -> Reply:
    """POST /embed: a vector for each text."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "embed", EMBEDS)
    inputs = _inputs(exchange, fields)
    task = embedding_task(
        model,
        inputs,
        cut=Cut(truncation_of(exchange, fields, model)),
        prompt_name=fields.optional_text("prompt_name"),
        truncate_dim=fields.integer("dimensions", 1),
        normalize=fields.flag("normalize", True),
    )
    fields.refuse_rest(EMBEDDING)
    outcome = await exchange.run(model, task, inputs.items, "embed", single=inputs.single)
    headers = compute_headers(exchange, outcome, inputs.characters, model.device)
    return vectors_reply(contiguous(outcome.found), [outcome.found], headers)


def _states_of_ids(runner: TextRunner, truncation: bool, prompt_name: str | None) -> OfIds:
    states = HiddenStates(runner, prompt_name=prompt_name, truncation=truncation)
    return OfIds(runner, states, states.output, truncation)


async def embed_all(exchange: Exchange) -> Reply:
    """POST /embed_all: for each text, a vector for each of its tokens."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "embed_all", EMBEDS)
    inputs = _inputs(exchange, fields)
    truncation = truncation_of(exchange, fields, model)
    prompt_name = fields.optional_text("prompt_name")
    fields.refuse_rest(EMBEDDING)
    numbers = model.estimate(inputs.items)[0] * model.text.session.hidden_size
    if numbers > _MOST_NUMBERS:
        raise ServeError(
            "too_large",
            f"the vectors of all tokens would be about {numbers} numbers, at most "
            f"{_MOST_NUMBERS} are given: send fewer texts",
            parameter="inputs",
        )
    task: AnyTask = model.task(
        _states_of_ids if inputs.ids else HiddenStates,
        truncation=truncation,
        prompt_name=prompt_name,
    )
    outcome = await exchange.run(model, task, inputs.items, "embed", single=inputs.single)
    headers = compute_headers(exchange, outcome, inputs.characters, model.device)
    content = [contiguous(rows) for rows in outcome.found]
    return vectors_reply(content, outcome.found, headers)


def _sparse(runner: TextRunner, truncation: bool, prompt_name: str | None) -> SparseEmbedding:
    return SparseEmbedding(
        runner, prompt=None, prompt_name=prompt_name, max_length=None, truncation=truncation
    )


def _entries(found: list[Any]) -> list[list[dict[str, Any]]]:
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(ids.tolist(), weights.tolist(), strict=True)
        ]
        for ids, weights in found
    ]


async def embed_sparse(exchange: Exchange) -> Reply:
    """POST /embed_sparse: for each text, its entries of the vocabulary and their weights."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "embed_sparse", SPARSE)
    inputs = _inputs(exchange, fields)
    if inputs.ids:
        raise ServeError("unsupported", "inputs are ids, and sparse embeddings are made of texts")
    task = model.task(
        _sparse,
        truncation=truncation_of(exchange, fields, model),
        prompt_name=fields.optional_text("prompt_name"),
    )
    fields.refuse_rest(EMBEDDING)
    outcome = await exchange.run(model, task, inputs.items, "embed", single=inputs.single)
    content = await service.on_thread(lambda: _entries(outcome.found))
    headers = compute_headers(exchange, outcome, inputs.characters, model.device)
    return json_reply(content, headers=headers)


async def rerank(exchange: Exchange) -> Reply:
    """POST /rerank: the scores of texts for a query, best first."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "score", RERANKS)
    texts = fields.texts("texts", service.settings.max_client_batch_size)
    query = fields.text("query")
    with_text = fields.flag("return_text", False)
    cut = Cut(truncation_of(exchange, fields, model))
    raw = fields.flag("raw_scores", False)
    fields.refuse_rest(RANKING)
    ranked, outcome = await rank(exchange, model, query, texts, cut=cut, raw=raw)
    content = [
        {"index": i, "text": texts[i], "score": score}
        if with_text
        else {"index": i, "score": score}
        for i, score in ranked
    ]
    characters = len(query) * len(texts) + sum(map(len, texts))
    headers = compute_headers(exchange, outcome, characters, model.device)
    return json_reply(content, headers=headers)


def _predicted(fields: Fields, most: int) -> tuple[list[Any], bool]:
    """(texts and pairs, whether there is but one): "a", ["a", "b"] a pair, or a list of lists."""
    value = fields.get("inputs")
    if isinstance(value, str):
        return [value], True
    expected = "a text, a pair of texts, or a list of lists of one or two texts"
    if not isinstance(value, list):
        fields.wrong("inputs", expected)
    check_count("inputs", len(value), most)
    if all(isinstance(one, str) for one in value) and len(value) <= 2:
        return [value[0] if len(value) == 1 else tuple(value)], True
    if not all(_is_sequence(one) for one in value):
        fields.wrong("inputs", expected)
    return [one[0] if len(one) == 1 else tuple(one) for one in value], False


def _is_sequence(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return texts and len(value) in (1, 2)


async def predict(exchange: Exchange) -> Reply:
    """POST /predict: all labels of each text or pair, best first."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "classify", PREDICTS)
    items, single = _predicted(fields, service.settings.max_client_batch_size)
    raw = fields.flag("raw_scores", False)
    options = fields.table("parameters") or Fields({})
    activation = options.get("function_to_apply")
    if raw and activation is not None:
        options.wrong("function_to_apply", "nothing beside raw_scores = true")
    task = model.task(
        Predictions,
        top_k=options.integer("top_k", 1),
        activation="none" if raw else options.optional_text("function_to_apply"),
        truncation=truncation_of(exchange, fields, model),
    )
    fields.refuse_rest(OF_TEXTS)
    outcome = await exchange.run(model, task, items, "predict", single=single)
    characters = sum(len(one) if isinstance(one, str) else sum(map(len, one)) for one in items)
    headers = compute_headers(exchange, outcome, characters, model.device)
    return json_reply(outcome.found[0] if single else outcome.found, headers=headers)


async def similarity(exchange: Exchange) -> Reply:
    """POST /similarity: the cosines of one text and some others."""
    fields = Fields(await exchange.json())
    service = exchange.service
    inputs = fields.table("inputs")
    if inputs is None:
        fields.wrong("inputs", "an object with source_sentence and sentences")
    options = fields.table("parameters") or Fields({})
    model = service.registry.get(fields.optional_text("model"), "embed", EMBEDS)
    sentences = inputs.texts("sentences", service.settings.max_client_batch_size - 1)
    texts = Inputs([inputs.text("source_sentence"), *sentences], False, False)
    task = embedding_task(
        model,
        texts,
        cut=Cut(truncation_of(exchange, options, model)),
        prompt_name=options.optional_text("prompt_name"),
    )
    fields.refuse_rest(EMBEDDING)
    outcome = await exchange.run(model, task, texts.items, "embed")
    vectors = scale_to_length_1(outcome.found)
    headers = compute_headers(exchange, outcome, texts.characters, model.device)
    return json_reply(vectors[1:] @ vectors[0], headers=headers)


def default_route(model: AnyServed) -> Any:
    """Handler of POST / for a model, by what it is made for."""
    if "score" in model.methods:
        return rerank
    if "classify" in model.methods:
        return predict
    if "embed" in model.methods:
        return embed
    if "embed_sparse" in model.methods:
        return embed_sparse
    able = ", ".join(sorted(model.methods))
    raise ServeError("unsuited", f"model {model.name!r} has a route of its own: it can {able}")


async def root(exchange: Exchange) -> Reply:
    """POST /: what the first model is made for."""
    models = exchange.service.registry.models()
    if not models:
        raise ServeError("no_model", "no model is loaded")
    reply: Reply = await default_route(models[0])(exchange)
    return reply
