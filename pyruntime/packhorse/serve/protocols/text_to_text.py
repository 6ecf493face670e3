"""Translations and summaries, by the schemas of Hugging Face's Inference API.

"parameters.generate_parameters" has options of `TextModel.translate` by their names, and "inputs"
may be a list. The answer is a list, also for one text. With "num_return_sequences" over 1 a list is
given for each text of a list, and each text of beam search has its "score".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from packhorse.generation.results import Generation
from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, check_count
from packhorse.serve.http.exchange import Exchange, Reply, json_reply
from packhorse.serve.http.limits import check_sequences
from packhorse.serve.models.generating import Prompt, as_served
from packhorse.serve.openapi.effectless import OF_TEXTS
from packhorse.serve.protocols.openai_generation import Call
from packhorse.serve.protocols.openai_options import Asked, bounded_tokens
from packhorse.text.generation.calls import TextGeneration
from packhorse.text.generation.generator import Prompt as TextPrompt
from packhorse.text.generation.options import RequestOptions
from packhorse.text.translation.translation import SPLITS, Conversion, Job, TextToText, join_parts

TRANSLATES = "a model with an encoder and a decoder"
# Options of one request: (least, most) of those that are whole numbers, and of the others.
_INTEGERS = {
    "max_new_tokens": (1, 1 << 30),
    "min_new_tokens": (0, 1 << 30),
    "num_beams": (1, 64),
    "no_repeat_ngram_size": (0, 1 << 20),
    "encoder_no_repeat_ngram_size": (0, 1 << 20),
    "top_k": (0, 1 << 30),
    "seed": (0, 2**64 - 1),
}
_NUMBERS = {
    "length_penalty": (-100.0, 100.0),
    "repetition_penalty": (0.0, 100.0),
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
}
_MOST_N = 64
Make = Callable[[TextToText, int, dict[str, Any]], Conversion]


def _options(exchange: Exchange, parameters: Fields) -> tuple[int, dict[str, Any]]:
    """(texts that are made of each, other options)"""
    fields = parameters.table("generate_parameters") or Fields({})
    n = fields.integer("num_return_sequences", 1, _MOST_N) or 1
    found: dict[str, Any] = {
        **{name: fields.integer(name, *ends) for name, ends in _INTEGERS.items()},
        **{name: fields.number(name, *ends) for name, ends in _NUMBERS.items()},
    }
    early = fields.get("early_stopping")
    if early is not None and early not in (True, False, "never"):
        fields.wrong("early_stopping", 'true, false or "never"')
    most = exchange.service.settings.max_new_tokens
    if found["max_new_tokens"] is not None or most is not None:
        asked = found["max_new_tokens"]
        found["max_new_tokens"] = most if asked is None else bounded_tokens(exchange, asked)
    said = {**found, "early_stopping": early}
    return n, {name: value for name, value in said.items() if value is not None}


def _made(prompt: TextPrompt, _generation: TextGeneration) -> TextPrompt:
    return prompt


def _record(name: str, made: Generation) -> dict[str, Any]:
    return {name: made.text, **({"score": made.score} if made.score else {})}


async def _convert(exchange: Exchange, name: str, made_by: Callable[[Fields], Make]) -> Reply:
    """Answers with texts under `name`. made_by: reads the parameters of the task."""
    fields = Fields(await exchange.json())
    service = exchange.service
    generator = service.registry.generator(fields.optional_text("model"), TRANSLATES)
    single = isinstance(fields.get("inputs"), str)
    most = service.settings.max_client_batch_size
    texts = [fields.text("inputs")] if single else fields.texts("inputs", most)
    parameters = fields.table("parameters") or Fields({})
    make = made_by(parameters)
    n, options = _options(exchange, parameters)
    fields.refuse_rest(OF_TEXTS)
    check_count("inputs", len(texts), most)
    converter = generator.model.text._to_text
    if converter is None:
        raise ServeError(
            "unsupported", f"the model {generator.name!r} is not {TRANSLATES}, which this takes"
        )

    def prepare() -> list[Job]:
        with as_served():
            conversion = make(converter, n, options)
            return [conversion.job(text, i, f"inputs[{i}]") for i, text in enumerate(texts)]

    jobs = await exchange.on_thread(prepare)
    prompts = [Prompt(partial(_made, one), one.name, False) for job in jobs for one in job.prompts]
    check_sequences(len(prompts), n, service.settings.max_client_sequences)

    def compile_options(more: dict[str, Any]) -> RequestOptions:
        with as_served():
            return make(converter, n, {**options, **more}).asked

    asked = Asked({}, n, False, False, False, False, {})
    call = Call(exchange, generator, asked, prompts, compile_options)
    await call.start()
    try:
        made = await call.whole()
    finally:
        call.end()
    found: list[Any] = []
    at = 0
    for job in jobs:
        parts = made[at : at + len(job.prompts)]
        records = [_record(name, join_parts(job.text, [one[i] for one in parts])) for i in range(n)]
        found.append(records if n > 1 else {name: records[0][name]})
        at += len(parts)
    return json_reply(found[0] if single and n > 1 else found)


def _translation(parameters: Fields) -> Make:
    source, target = (parameters.optional_text(name) for name in ("src_lang", "tgt_lang"))
    split: Any = parameters.choice("split", SPLITS, "long")
    return lambda model, n, options: model.translation(
        source, target, n=n, split=split, options=options
    )


def _summary(parameters: Fields) -> Make:
    split: Any = parameters.choice("split", SPLITS, "long")
    return lambda model, n, options: model.summary(n=n, split=split, options=options)


async def translate(exchange: Exchange) -> Reply:
    """POST /translate: each text in another language."""
    return await _convert(exchange, "translation_text", _translation)


async def summarize(exchange: Exchange) -> Reply:
    """POST /summarize: a summary of each text."""
    return await _convert(exchange, "summary_text", _summary)
