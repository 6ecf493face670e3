"""Schemas of OpenAI's responses."""

from __future__ import annotations

from packhorse.serve.openapi.effectless import RESPONSES
from packhorse.serve.openapi.parts import (
    COUNT,
    FLAG,
    MODEL,
    NULL,
    NUMBER,
    TEXT,
    Schema,
    array,
    closed,
    constant,
    one_of,
    optional,
    ref,
    request,
    thing,
)

_PARTS = array(thing({"type": TEXT}))
_CONTENT = one_of(TEXT, _PARTS)
_FORMAT = thing(
    {"type": constant("text", "json_object", "json_schema")}, {"schema": {"type": "object"}}
)
_TOOLS = array(
    thing(
        {"type": constant("function"), "name": TEXT}, {"parameters": optional({"type": "object"})}
    )
)
_CHOICE = one_of(
    constant("none", "auto", "required"),
    thing({"type": constant("function"), "name": TEXT}),
)
_INPUT_ITEM = one_of(
    thing({"role": TEXT, "content": _CONTENT}, {"type": constant("message")}),
    thing({"type": constant("function_call"), "call_id": TEXT, "name": TEXT, "arguments": TEXT}),
    thing({"type": constant("function_call_output"), "call_id": TEXT, "output": _CONTENT}),
)
_TEXT_PART = closed(
    {
        "type": constant("output_text"),
        "text": TEXT,
        "annotations": array({}),
        "logprobs": array({}),
    }
)
_STATUS = constant("in_progress", "completed")
_ITEM = one_of(
    closed(
        {
            "id": TEXT,
            "type": constant("message"),
            "status": _STATUS,
            "role": constant("assistant"),
            "content": array(_TEXT_PART),
        }
    ),
    closed(
        {
            "id": TEXT,
            "type": constant("function_call"),
            "status": _STATUS,
            "call_id": TEXT,
            "name": TEXT,
            "arguments": TEXT,
        }
    ),
)
_USAGE = closed(
    {
        "input_tokens": COUNT,
        "input_tokens_details": closed({"cached_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": closed({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
_OF_ITEM: dict[str, Schema] = {"item_id": TEXT, "output_index": COUNT}
_OF_TEXT: dict[str, Schema] = {**_OF_ITEM, "content_index": COUNT}
_ADDED: dict[str, Schema] = {"output_index": COUNT, "item": _ITEM}
# Type -> its fields.
_EVENTS: dict[str, dict[str, Schema]] = {
    **{
        f"response.{kind}": {"response": ref("Response")}
        for kind in ("created", "in_progress", "completed", "incomplete")
    },
    "response.output_item.added": _ADDED,
    "response.output_item.done": _ADDED,
    "response.content_part.added": {**_OF_TEXT, "part": _TEXT_PART},
    "response.content_part.done": {**_OF_TEXT, "part": _TEXT_PART},
    "response.output_text.delta": {**_OF_TEXT, "delta": TEXT, "logprobs": array({})},
    "response.output_text.done": {**_OF_TEXT, "text": TEXT, "logprobs": array({})},
    "response.function_call_arguments.delta": {**_OF_ITEM, "delta": TEXT},
    "response.function_call_arguments.done": {**_OF_ITEM, "name": TEXT, "arguments": TEXT},
    "error": {"code": TEXT, "message": TEXT, "param": optional(TEXT)},
}

SCHEMAS: dict[str, Schema] = {
    "ResponseRequest": request(
        {"input": one_of(TEXT, array(_INPUT_ITEM, 1))},
        {
            "model": MODEL,
            "instructions": optional(TEXT),
            "max_output_tokens": optional({"type": "integer", "minimum": 1}),
            "temperature": optional({"type": "number", "minimum": 0, "maximum": 100}),
            "top_p": optional({"type": "number", "minimum": 0, "maximum": 1}),
            "tools": optional(_TOOLS),
            "tool_choice": optional(_CHOICE),
            "parallel_tool_calls": optional(FLAG),
            "text": optional(thing({}, {"format": optional(_FORMAT)})),
            "reasoning": optional({"type": "object"}),
            "store": optional(constant(False)),
            "stream": optional(FLAG),
            "stream_options": optional({"type": "object"}),
        },
        RESPONSES,
    ),
    "Response": closed(
        {
            "id": TEXT,
            "object": constant("response"),
            "created_at": COUNT,
            "status": constant("in_progress", "completed", "incomplete"),
            "background": constant(False),
            "error": NULL,
            "incomplete_details": optional(closed({"reason": constant("max_output_tokens")})),
            "instructions": optional(TEXT),
            "max_output_tokens": optional(COUNT),
            "metadata": {},
            "model": TEXT,
            "output": array(_ITEM),
            "parallel_tool_calls": FLAG,
            "previous_response_id": NULL,
            "reasoning": closed({"effort": NULL, "summary": NULL}),
            "store": constant(False),
            "temperature": NUMBER,
            "text": closed({"format": _FORMAT}),
            "tool_choice": _CHOICE,
            "tools": _TOOLS,
            "top_p": NUMBER,
            "truncation": constant("disabled"),
            "usage": optional(_USAGE),
            "user": {},
        }
    ),
    "ResponseEvent": one_of(
        *(
            closed({"type": constant(kind), "sequence_number": COUNT, **fields})
            for kind, fields in _EVENTS.items()
        )
    ),
}
