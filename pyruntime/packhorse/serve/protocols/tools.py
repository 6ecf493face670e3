"""The fields of OpenAI's routes about tools, and calls as its answers have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, check_count
from packhorse.serve.models.model import ServedModel
from packhorse.serve.protocols.openai_options import Asked
from packhorse.text.generation.options import FORMS
from packhorse.text.generation.tool_use import NamedCall, ToolUse

_MOST_TOOLS = 128


def read_tools(fields: Fields, model: ServedModel, asked: Asked) -> tuple[ToolUse | None, Asked]:
    """(how the tools of a request are used; None where there are none, what is asked for then).
    A tool may be written as on the route of chats or, without "function" around it, as on that of
    responses. Raises ServeError."""
    tools = fields.get("tools")
    if tools is None:
        tools = []
    choice = fields.get("tool_choice")
    several = fields.flag("parallel_tool_calls", True)
    if not isinstance(tools, list):
        fields.wrong("tools", "a list of functions")
    if not tools and choice in (None, "none", "auto"):
        return None, asked
    if tools:
        check_count("tools", len(tools), _MOST_TOOLS)
    nested = [_nested(tool, i) for i, tool in enumerate(tools)]
    generation = model.engines[0].generation
    use, options = fields.checked(lambda: generation.tool_use(nested, choice, several, strict=True))
    if "grammar" in options and any(form in asked.options for form in FORMS):
        fields.wrong("tool_choice", "it without another form of the output")
    names = {**asked.names, "grammar": "tools"} if "grammar" in options else asked.names
    return use, replace(asked, options={**asked.options, **options}, names=names)


def _nested(tool: Any, number: int) -> dict[str, Any]:
    """A tool as templates take it."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise ServeError(
            "unsupported",
            f"tools[{number}] of type {kind!r:.40} is not supported",
            parameter="tools",
        )
    if not isinstance(kind, str):
        raise ServeError(
            "validation",
            f'tools[{number}] is {tool!r:.80}, expected {{"type": "function", ...}}',
            parameter="tools",
        )
    if "function" in tool:
        return dict(tool)
    function = {key: value for key, value in tool.items() if key not in ("type", "strict")}
    return {"type": "function", "function": function}


def written_calls(calls: Sequence[NamedCall]) -> list[dict[str, Any]]:
    """Calls in the form of a message."""
    return [call.message(call.written) for call in calls]


def calls_of_message(value: Any, name: str) -> list[dict[str, Any]]:
    """The calls of a message, as templates take them: arguments are objects. Raises ServeError;
    `name`: what messages call them."""
    if not isinstance(value, list):
        raise _wrong(name, value, "a list of calls")
    found = []
    for i, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _wrong(f"{name}[{i}]", call, '{"function": {"name": ..., "arguments": ...}}')
        where = f"{name}[{i}].function.arguments"
        arguments = read_arguments(function.get("arguments"), where)
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found


def read_arguments(value: Any, name: str) -> dict[str, Any]:
    """The arguments of a call, an object or its text. Raises ServeError."""
    found = value
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            found = orjson.loads(value)
        except orjson.JSONDecodeError:
            found = None
    if not isinstance(found, dict):
        raise _wrong(name, value, "an object of JSON, or its text")
    return found


def _wrong(name: str, value: Any, expected: str) -> ServeError:
    said = f"{name} is {value!r:.80}, expected {expected}"
    return ServeError("validation", said, parameter=name.partition("[")[0])
