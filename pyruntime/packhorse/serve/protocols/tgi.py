"""The protocol of text-generation-inference: one text for one prompt, or of one source.

A temperature other than 1, top_k or top_p sample as `do_sample` does; a text holds the stop string
that ended it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from packhorse.generation.results import Generation
from packhorse.packing import Int32Array
from packhorse.serve.http.checks import Fields
from packhorse.serve.http.exchange import Exchange, Reply, json_reply
from packhorse.serve.http.limits import check_stops
from packhorse.serve.models.generating import Prompt
from packhorse.serve.openapi.effectless import OF_TEXTS, TGI_PARAMETERS
from packhorse.serve.protocols.openai_generation import GENERATES, Call
from packhorse.serve.protocols.openai_options import Asked, bounded_tokens
from packhorse.text.generation.calls import TextGeneration

_DEFAULT_TOKENS = 100
_LEAST_TEMPERATURE = 1e-6
_MOST_SEED = 2**64 - 1


def _options(exchange: Exchange, fields: Fields, *, details: bool, beams: bool) -> dict[str, Any]:
    """beams: whether the model's files may ask for beam search."""
    temperature = fields.number("temperature", _LEAST_TEMPERATURE, 100)
    by_chance = {
        "top_k": fields.integer("top_k", 1),
        "top_p": fields.number("top_p", 1e-9, 1),
    }
    samples = fields.flag("do_sample", False) or temperature not in (None, 1.0)
    samples = samples or any(value is not None for value in by_chance.values())
    seed = fields.integer("seed", 0, _MOST_SEED)
    stops = fields.texts("stop", 1 << 20) if fields.get("stop") else []
    check_stops(stops)
    tokens = fields.integer("max_new_tokens", 1) or _DEFAULT_TOKENS
    options: dict[str, Any] = {
        "max_new_tokens": bounded_tokens(exchange, tokens),
        "repetition_penalty": fields.number("repetition_penalty", 1e-6, 100),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "stop": stops or None,
        "include_stop": bool(stops) or None,
        "logprobs": 0 if details else None,
        "temperature": 0.0,
    }
    if samples:
        options |= {"temperature": temperature or 1.0, "seed": seed, **by_chance}
        if beams:
            options["num_beams"] = 1
    return {name: value for name, value in options.items() if value is not None}


def _reason(made: Generation, stops: list[str]) -> str:
    if made.finish_reason != "stop":
        return "length"
    return "stop_sequence" if made.text.endswith(tuple(stops)) else "eos_token"


def _details(made: Generation, options: dict[str, Any], generation: TextGeneration) -> Any:
    texts = made.token_texts or []
    tokens = [
        {
            "id": number,
            "text": text.text,
            "logprob": logprob,
            "special": number in generation.special_names,
        }
        for number, text, logprob in zip(made.ids, texts, made.logprobs or [], strict=False)
    ]
    return {
        "finish_reason": _reason(made, options.get("stop", [])),
        "generated_tokens": len(made.ids),
        "seed": options.get("seed"),
        "prefill": [],
        "tokens": tokens,
    }


def _kept(ids: Int32Array, count: int | None) -> Int32Array:
    """The last tokens of a prompt."""
    return ids if count is None else ids[-count:]


async def generate(exchange: Exchange) -> Reply:
    """POST /generate: the text that follows a prompt or, of a model with an encoder, that it makes
    of a source."""
    fields = Fields(await exchange.json())
    service = exchange.service
    generator = service.registry.generator(fields.optional_text("model"), GENERATES)
    generation = generator.model.engines[0].generation
    text = fields.text("inputs")
    parameters = fields.table("parameters") or Fields({})
    details = parameters.flag("details", False)
    whole = parameters.flag("return_full_text", False)
    if whole and not generation.continues:
        parameters.refuse("return_full_text", "the text does not go on with that of its source")
    kept = parameters.integer("truncate", 1)
    beams = not generation.continues
    options = _options(exchange, parameters, details=details, beams=beams)
    parameters.refuse_rest(TGI_PARAMETERS)
    fields.refuse_rest(OF_TEXTS)

    def ids(of: TextGeneration) -> Int32Array:
        return _kept(of.prompt_ids(text, 0), kept)

    asked = Asked(options, 1, details, False, False, False, {})
    prompt = Prompt(partial(ids), "inputs", generation.continues)
    call = Call(exchange, generator, asked, [prompt])
    await call.start()
    try:
        ((made,),) = await call.whole()
    finally:
        call.end()
    answer: dict[str, Any] = {"generated_text": (text if whole else "") + made.text}
    if details:
        answer["details"] = _details(made, options, generation)
    return json_reply(answer)
