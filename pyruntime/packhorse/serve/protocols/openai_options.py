"""The options of OpenAI's routes that generate, as options of `TextModel.generate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packhorse.serve.checks import Fields
from packhorse.serve.errors import ServeError
from packhorse.serve.exchange import Exchange
from packhorse.serve.limits import check_sizes
from packhorse.serve.model import ServedModel

_MOST_N = 128
_MOST_LOGPROBS = 20
_REFUSED = (
    "tools",
    "functions",
    "modalities",
    "audio",
    "prediction",
    "web_search_options",
    "suffix",
    "use_beam_search",
)


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    options    of `TextModel.generate`
    n          texts for each prompt
    logprobs   whether log-probabilities are in the answer
    stream     whether pieces are sent as they come
    usage      whether a stream ends with the usage
    """

    options: dict[str, Any]
    n: int
    logprobs: bool
    stream: bool
    usage: bool


def read_options(exchange: Exchange, fields: Fields, model: ServedModel, *, chat: bool) -> Asked:
    """Raises ServeError, for what is not supported by name."""
    fields.refuse(*_REFUSED)
    check_sizes(fields)
    if fields.get("tool_choice") not in (None, "none"):
        fields.refuse("tool_choice")
    if fields.get("function_call") not in (None, "none"):
        fields.refuse("function_call")
    n = fields.integer("n", 1, _MOST_N) or 1
    best_of = fields.integer("best_of", 1)
    if best_of is not None and best_of != n:
        fields.refuse("best_of")
    stream = fields.flag("stream", False)
    with_usage = False
    stream_options = fields.table("stream_options")
    if stream_options is not None:
        if not stream:
            fields.wrong("stream_options", "it to come with stream = true")
        with_usage = stream_options.flag("include_usage", False)
    temperature = fields.number("temperature", 0, 100)
    if temperature is None:
        temperature = model.engines[0].generation.defaults.get("temperature", 1.0)
    options = {
        "max_new_tokens": _max_new_tokens(exchange, fields, chat),
        "temperature": temperature,
        "top_p": fields.number("top_p", 0, 1) if temperature else None,
        "top_k": _top_k(fields) if temperature else None,
        "min_p": fields.number("min_p", 0, 1) if temperature else None,
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "repetition_penalty": fields.number("repetition_penalty", 0, 100),
        "logit_bias": _logit_bias(fields),
        "seed": _seed(fields),
        "stop": _stop(fields),
        "stop_ids": fields.get("stop_token_ids"),
        "ignore_eos": fields.get("ignore_eos"),
        "logprobs": _logprobs(fields, chat),
        **_form(fields),
    }
    given = {name: value for name, value in options.items() if value is not None}
    return Asked(given, n, "logprobs" in given, stream, with_usage)


def _max_new_tokens(exchange: Exchange, fields: Fields, chat: bool) -> int:
    given = fields.integer("max_completion_tokens", 1)
    if given is None:
        given = fields.integer("max_tokens", 0)
    settings = exchange.service.settings
    if given is None:
        given = settings.default_new_tokens if chat else 16
    most = settings.max_new_tokens
    return given if most is None else min(given, most)


def _top_k(fields: Fields) -> int | None:
    given = fields.integer("top_k", -1)
    return None if given == -1 else given


def _seed(fields: Fields) -> int | None:
    given = fields.integer("seed", -(2**63), 2**64 - 1)
    return None if given is None else given % 2**64


def _stop(fields: Fields) -> list[str] | None:
    value = fields.get("stop")
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        fields.wrong("stop", "a text, or a list of texts that are not empty")
    return texts


def _logit_bias(fields: Fields) -> dict[int, float] | None:
    value = fields.get("logit_bias")
    if value is None:
        return None
    if not isinstance(value, dict):
        fields.wrong("logit_bias", "an object of token ids and numbers")
    try:
        return {int(token): float(bias) for token, bias in value.items()} or None
    except (TypeError, ValueError):
        fields.wrong("logit_bias", "an object of token ids and numbers")


def _logprobs(fields: Fields, chat: bool) -> int | None:
    """How many of the most probable tokens are wanted; None: no log-probabilities at all."""
    if not chat:
        return fields.integer("logprobs", 0, _MOST_LOGPROBS)
    top = fields.integer("top_logprobs", 0, _MOST_LOGPROBS)
    if not fields.flag("logprobs", False):
        if top:
            fields.wrong("top_logprobs", "logprobs = true with it")
        return None
    return top or 0


def _form(fields: Fields) -> dict[str, Any]:
    """What the output has to look like."""
    asked = {"regex": fields.optional_text("regex"), "choices": fields.get("choices")}
    form = fields.table("response_format")
    if form is None:
        return asked
    kind = form.choice("type", ("text", "json_object", "json_schema"), "text")
    if kind == "json_object":
        return {**asked, "schema": {"type": "object"}}
    if kind == "text":
        return asked
    described = form.table("json_schema")
    schema = None if described is None else described.get("schema")
    if not isinstance(schema, dict):
        raise ServeError(
            "validation",
            "response_format.json_schema.schema is missing, expected a JSON schema",
            parameter="response_format",
        )
    return {**asked, "schema": schema}
