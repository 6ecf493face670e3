"""The options of OpenAI's routes that generate, as options of `TextModel.generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields
from packhorse.serve.http.exchange import Exchange
from packhorse.serve.http.field_names import in_fields
from packhorse.serve.http.limits import check_sizes, check_stops
from packhorse.serve.models.model import ServedModel
from packhorse.serve.protocols.output_form import read_form

_MOST_N = 128
_MOST_LOGPROBS = 20
_NAMES = {"allowed_ids": "allowed_token_ids", "stop_ids": "stop_token_ids"}
_LEAST_TOP_P = 1e-9  # the most probable token alone, as 0 asks for


@dataclass(frozen=True)
class Asked:
    """Options that a request asks for.

    options    of `TextModel.generate`
    n          texts for each prompt
    logprobs   whether log-probabilities are in the answer
    as_ids     whether these name tokens by their ids
    stream     whether pieces are sent as they come
    usage      whether a stream ends with the usage
    names      options -> the fields that they came from, where these have other names
    """

    options: dict[str, Any]
    n: int
    logprobs: bool
    as_ids: bool
    stream: bool
    usage: bool
    names: Mapping[str, str]

    def in_fields(self, error: ServeError) -> ServeError:
        """An error of the options, with the names of fields."""
        error.message = in_fields(error.message, self.names)
        return error


def read_temperature(fields: Fields, model: ServedModel) -> float:
    """The temperature; one that a request leaves out is as the model's files say, else 1, or 0
    of models that make a text of another."""
    given = fields.number("temperature", 0, 100)
    generation = model.engines[0].generation
    usual = 1.0 if generation.sources is None else 0.0
    default: float = generation.defaults.get("temperature", usual)
    return default if given is None else given


def read_options(exchange: Exchange, fields: Fields, model: ServedModel, *, chat: bool) -> Asked:
    """Raises ServeError, for what is not supported by name."""
    check_sizes(fields)
    n = fields.integer("n", 1, _MOST_N) or 1
    best_of = fields.integer("best_of", 1)
    if best_of is not None and best_of != n:
        fields.refuse("best_of", "n texts are made, and all of them given")
    stream = fields.flag("stream", False)
    with_usage = False
    stream_options = fields.table("stream_options")
    if stream_options is not None:
        if not stream:
            fields.wrong("stream_options", "it to come with stream = true")
        with_usage = stream_options.flag("include_usage", False)
    temperature = read_temperature(fields, model)
    by_chance = {
        "top_p": read_top_p(fields),
        "top_k": _top_k(fields),
        "min_p": fields.number("min_p", 0, 1),
    }
    options = {
        "max_new_tokens": _max_new_tokens(exchange, fields, chat),
        "temperature": temperature,
        **(by_chance if temperature else {}),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "repetition_penalty": fields.number("repetition_penalty", 0, 100),
        "logit_bias": _logit_bias(fields),
        "allowed_ids": _allowed_ids(fields),
        "seed": _seed(fields),
        "stop": _stop(fields),
        "stop_ids": fields.ids("stop_token_ids"),
        "include_stop": fields.flag("include_stop_str_in_output", False) or None,
        "ignore_eos": fields.flag("ignore_eos", False) or None,
        "logprobs": _logprobs(fields, chat),
    }
    if temperature and model.engines[0].generation.sources is not None:
        options["num_beams"] = 1  # files of models that translate mostly ask for more
    form = read_form(fields)
    names = dict(_NAMES)
    if form is not None:
        options[form.option] = form.value
        names[form.option] = form.name
    as_ids = fields.flag("return_tokens_as_token_ids", False)
    given = {name: value for name, value in options.items() if value is not None}
    return Asked(given, n, "logprobs" in given, as_ids, stream, with_usage, names)


def _max_new_tokens(exchange: Exchange, fields: Fields, chat: bool) -> int | None:
    named = (
        fields.integer("max_completion_tokens", 1),
        fields.integer("max_tokens", 0),
        fields.integer("n_predict", -1),
    )
    settings = exchange.service.settings
    default = settings.default_new_tokens if chat else 16
    given = next((number for number in named if number is not None), default)
    return settings.max_new_tokens if given == -1 else bounded_tokens(exchange, given)


def bounded_tokens(exchange: Exchange, given: int) -> int:
    """Limits a number of tokens to the server's bound."""
    most = exchange.service.settings.max_new_tokens
    return given if most is None else min(given, most)


def read_top_p(fields: Fields) -> float | None:
    given = fields.number("top_p", 0, 1)
    return None if given is None else max(given, _LEAST_TOP_P)


def _top_k(fields: Fields) -> int | None:
    given = fields.integer("top_k", -1)
    return 0 if given == -1 else given  # both stand for all tokens


def _seed(fields: Fields) -> int | None:
    given = fields.integer("seed", -(2**63), 2**64 - 1)
    return None if given is None or given == -1 else given % 2**64  # -1: any, as vLLM has it


def _allowed_ids(fields: Fields) -> list[int] | None:
    given = fields.ids("allowed_token_ids")
    if given == []:
        fields.wrong("allowed_token_ids", "one token id at least")
    return given


def _stop(fields: Fields) -> list[str] | None:
    value = fields.get("stop")
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        fields.wrong("stop", "a text, or a list of texts that are not empty")
    check_stops(texts)
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
    """Number of the most probable tokens that are wanted; None: no log-probabilities at all."""
    if not chat:
        return fields.integer("logprobs", 0, _MOST_LOGPROBS)
    top = fields.integer("top_logprobs", 0, _MOST_LOGPROBS)
    if not fields.flag("logprobs", False):
        if top:
            fields.wrong("top_logprobs", "logprobs = true with it")
        return None
    return top or 0
