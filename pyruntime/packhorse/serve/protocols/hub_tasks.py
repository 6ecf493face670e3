"""Tasks by the schemas of Hugging Face's Inference API, for which other protocols have no routes.

Every route takes the fields "model" and "truncate", as those of text-embeddings-inference do here.
"""

from __future__ import annotations

from typing import Any

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, check_count
from packhorse.serve.http.exchange import Exchange, Reply, compute_headers, json_reply
from packhorse.serve.http.limits import check_words
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.served import AnyTask
from packhorse.serve.openapi.effectless import OF_TEXTS
from packhorse.serve.protocols.tei import truncation_of
from packhorse.text.runner import TextRunner
from packhorse.text.tasks.answers import Answering
from packhorse.text.tasks.entities import TokenClassification
from packhorse.text.tasks.masks import MaskFilling
from packhorse.text.tasks.spans import AnswerOptions
from packhorse.text.tasks.tagging import STRATEGIES

TAGS = "a classifier of tokens"
ANSWERS = "a model that answers questions"
FILLS = "a masked language model that fills masks"
_FEW_LABELS = 16  # any model takes so many labels to be left out
_MOST_FILLINGS = 20_000
_MOST_QUESTION = 16_384  # characters; it stands in every window of the context


def _parameters(fields: Fields) -> Fields:
    return fields.table("parameters") or Fields({})


def _tagging(
    runner: TextRunner,
    strategy: Any,
    ignored: tuple[str, ...],
    stride: int | None,
    truncation: bool,
) -> TokenClassification:
    return TokenClassification(
        runner,
        aggregation_strategy=strategy,
        ignore_labels=ignored,
        stride=stride,
        max_length=None,
        truncation=truncation,
    )


def _inputs(fields: Fields, most: int) -> tuple[list[str], bool]:
    """(the texts, whether one was given by itself)"""
    single = isinstance(fields.get("inputs"), str)
    return ([fields.text("inputs")] if single else fields.texts("inputs", most)), single


async def token_classification(exchange: Exchange) -> Reply:
    """POST /token-classification: the entities of each text."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "classify_tokens", TAGS)
    texts, single = _inputs(fields, service.settings.max_client_batch_size)
    options = _parameters(fields)
    most = max(_FEW_LABELS, 2 * len(model.text.labels))  # labels, and the kinds that they are of
    ignored = ("O",) if options.get("ignore_labels") is None else _labels(options, most)
    task: AnyTask = model.task(
        _tagging,
        strategy=options.choice("aggregation_strategy", STRATEGIES, "simple"),
        ignored=ignored,
        stride=options.integer("stride", 0),
        truncation=truncation_of(exchange, fields, model),
    )
    fields.refuse_rest(OF_TEXTS)
    outcome = await exchange.run(model, task, texts, "predict", single=single)
    headers = compute_headers(exchange, outcome, sum(map(len, texts)), model.device)
    return json_reply(outcome.found[0] if single else outcome.found, headers=headers)


def _labels(options: Fields, most: int) -> tuple[str, ...]:
    value = options.get("ignore_labels")
    options.at_most("ignore_labels", most)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        options.wrong("ignore_labels", "a list of labels")
    check_words("parameters.ignore_labels", value, most)
    return tuple(value)


def _answering(
    runner: TextRunner, options: AnswerOptions, max_length: int | None, stride: int | None
) -> Answering:
    return Answering(runner, max_length=max_length, stride=stride, options=options)


async def question_answering(exchange: Exchange) -> Reply:
    """POST /question-answering: where a context answers a question; a list of "top_k" over 1."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "answer", ANSWERS)
    inputs = fields.table("inputs")
    if inputs is None:
        fields.wrong("inputs", "an object with question and context")
    question, context = inputs.text("question"), inputs.text("context")
    check_count("inputs.question", len(question), _MOST_QUESTION)
    options = _parameters(fields)
    task: AnyTask = model.task(
        _answering,
        options=AnswerOptions(
            options.integer("top_k", 1, 100) or 1,
            options.integer("max_answer_len", 1) or 15,
            options.flag("handle_impossible_answer", False),
            options.flag("align_to_words", True),
        ),
        max_length=options.integer("max_seq_len", 1),
        stride=options.integer("doc_stride", 0),
    )
    fields.refuse_rest(OF_TEXTS)
    pairs = [(question, context)]
    outcome = await exchange.run(model, task, pairs, "predict", single=True)
    headers = compute_headers(exchange, outcome, len(question) + len(context), model.device)
    return json_reply(outcome.found[0], headers=headers)


def _filling(
    runner: TextRunner, top_k: int, targets: tuple[str, ...] | None, truncation: bool
) -> MaskFilling:
    return MaskFilling(runner, top_k=top_k, targets=targets, max_length=None, truncation=truncation)


def _targets(options: Fields, most: int) -> tuple[str, ...] | None:
    value = options.get("targets")
    options.at_most("targets", most)
    if value is None:
        return None
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(one, str) for one in words):
        options.wrong("targets", "a word, or a list of words")
    check_words("parameters.targets", words, most)
    return tuple(words)


def _check_fillings(model: ServedModel, texts: list[str], top_k: int) -> None:
    """Raises ServeError for more words in the answer than are given: the text around each of them
    is in it."""
    tokenizer = model.text.tokenizer
    mask_id = tokenizer.special_id("mask")
    mask = "" if mask_id is None else tokenizer.token_of(mask_id)
    masks = sum(text.count(mask) for text in texts) if mask else 0
    if masks * top_k > _MOST_FILLINGS:
        raise ServeError(
            "too_large",
            f"{masks} masks with top_k {top_k} are {masks * top_k} words, at most {_MOST_FILLINGS} "
            "are given",
            parameter="parameters.top_k",
        )


async def fill_mask(exchange: Exchange) -> Reply:
    """POST /fill-mask: the likeliest words for the mask of each text; where a text has several
    masks, a list for each."""
    fields = Fields(await exchange.json())
    service = exchange.service
    model = service.registry.get(fields.optional_text("model"), "fill_mask", FILLS)
    texts, single = _inputs(fields, service.settings.max_client_batch_size)
    options = _parameters(fields)
    top_k = options.integer("top_k", 1, 1000) or 5
    _check_fillings(model, texts, top_k)
    task: AnyTask = model.task(
        _filling,
        top_k=top_k,
        targets=_targets(options, service.settings.max_client_batch_size),
        truncation=truncation_of(exchange, fields, model),
    )
    fields.refuse_rest(OF_TEXTS)
    outcome = await exchange.run(model, task, texts, "predict", single=single)
    headers = compute_headers(exchange, outcome, sum(map(len, texts)), model.device)
    return json_reply(outcome.found[0] if single else outcome.found, headers=headers)
