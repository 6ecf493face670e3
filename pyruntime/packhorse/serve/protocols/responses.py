"""OpenAI's /v1/responses, of which the server keeps nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from packhorse.packing import Int32Array
from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields
from packhorse.serve.http.exchange import Exchange, json_reply
from packhorse.serve.http.streams import EventStream
from packhorse.serve.models.generating import Prompt
from packhorse.serve.models.model import ServedModel
from packhorse.serve.openapi.effectless import RESPONSES
from packhorse.serve.protocols.openai_generation import GENERATES, Call
from packhorse.serve.protocols.openai_options import (
    Asked,
    bounded_tokens,
    read_temperature,
    read_top_p,
)
from packhorse.serve.protocols.output_form import Form, described_form
from packhorse.serve.protocols.response_input import read_input
from packhorse.serve.protocols.response_writing import ResponseWriter, named_event
from packhorse.serve.protocols.tools import read_tools
from packhorse.text.generation.calls import TextGeneration
from packhorse.text.generation.tool_use import ToolAnswer

_NOT_KEPT = "the server keeps no responses"


def _form(fields: Fields) -> Form | None:
    text = fields.table("text")
    form = None if text is None else text.table("format")
    return None if form is None else described_form(form, form, "text.format")


def _asked(exchange: Exchange, fields: Fields, model: ServedModel) -> Asked:
    temperature = read_temperature(fields, model)
    top_p = read_top_p(fields)
    form = _form(fields)
    most = fields.integer("max_output_tokens", 1)
    if most is None:
        most = exchange.service.settings.default_new_tokens
    options = {
        "max_new_tokens": bounded_tokens(exchange, most),
        "temperature": temperature,
        "top_p": top_p if temperature else None,
        **({} if form is None else {form.option: form.value}),
    }
    given = {name: value for name, value in options.items() if value is not None}
    names = {} if form is None else {form.option: form.name}
    stream = fields.flag("stream", False)
    if fields.table("stream_options") is not None and not stream:
        fields.wrong("stream_options", "it to come with stream = true")
    return Asked(given, 1, False, False, stream, False, names)


async def responses(exchange: Exchange) -> Any:
    """POST /v1/responses."""
    fields = Fields(await exchange.json())
    service = exchange.service
    generator = service.registry.generator(fields.optional_text("model"), GENERATES)
    model = generator.model
    if fields.flag("store", False):
        fields.refuse("store", _NOT_KEPT)
    for name in ("previous_response_id", "conversation"):
        if fields.get(name) is not None:
            fields.refuse(name, _NOT_KEPT)
    plain = _asked(exchange, fields, model)
    messages, (tools, asked) = await exchange.on_thread(
        lambda: (read_input(fields), read_tools(fields, model, plain))
    )
    fields.table("reasoning")
    fields.refuse_rest(RESPONSES)

    def ids(of: TextGeneration) -> Int32Array:
        schemas = None if tools is None else tools.schemas or None
        return of.chat_ids(messages, {"tools": schemas})

    answer = ToolAnswer(None, True) if tools is None else tools.answer()
    head = {
        "id": f"resp_{exchange.request_id}",
        "created_at": exchange.created,
        "model": generator.name,
        "temperature": asked.options["temperature"],
    }
    writer = ResponseWriter(head, fields, answer)
    call = Call(exchange, generator, asked, [Prompt(ids, "input", False)])
    await call.start()
    if asked.stream:
        return EventStream(_events(call, writer), call.end)
    try:
        ((made,),) = await call.whole()
    finally:
        call.end()
    await service.on_thread(lambda: writer.push(made.text, made))
    return json_reply(writer.response)


async def _events(call: Call, writer: ResponseWriter) -> AsyncGenerator[bytes, None]:
    try:
        for one in writer.begin():
            yield named_event(one)
        async with aclosing(call.pieces()) as pieces:
            async for _, running, _, text in pieces:
                ended = running.so_far(0) if running.has_ended(0) else None
                for one in writer.push(text, ended):
                    yield named_event(one)
    except ServeError as error:  # the status has been sent: the error is an event
        yield named_event(writer.error(error))
