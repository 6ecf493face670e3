"""The input of OpenAI's /v1/responses as the messages of a conversation."""

from __future__ import annotations

from typing import Any

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, check_count
from packhorse.serve.protocols.messages import MOST_MESSAGES, check_content
from packhorse.serve.protocols.tools import read_arguments

_ROLES = ("user", "assistant", "system", "developer")


def read_input(fields: Fields) -> list[dict[str, Any]]:
    """Messages as templates take them, "instructions" first. Raises ServeError."""
    instructions = fields.optional_text("instructions")
    given = fields.get("input")
    found = [] if instructions is None else [{"role": "system", "content": instructions}]
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not isinstance(given, list):
        fields.wrong("input", "a text, or a list of messages and other items")
    check_count("input", len(given), MOST_MESSAGES)
    for i, item in enumerate(given):
        _add(found, item, f"input[{i}]")
    return found


def _add(messages: list[dict[str, Any]], item: Any, name: str) -> None:
    """Adds what an item says to the conversation."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise _wrong(f"{name}.role", role, " or ".join(map(repr, _ROLES)))
        check_content(item.get("content"), f"{name}.content")
        # Templates know no developers.
        role = "system" if role == "developer" else role
        messages.append({"role": role, "content": item["content"]})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        function = {
            "name": _text(item, name, "name"),
            "arguments": read_arguments(item.get("arguments"), f"{name}.arguments"),
        }
        call = {"id": _text(item, name, "call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        check_content(item.get("output"), f"{name}.output")
        call_id = _text(item, name, "call_id")
        messages.append({"role": "tool", "tool_call_id": call_id, "content": item["output"]})
    elif isinstance(kind, str):
        raise ServeError(
            "unsupported", f"{name} of type {kind!r:.40} is not supported", parameter="input"
        )
    else:
        raise _wrong(name, item, "a message, a function_call or a function_call_output")


def _text(item: dict[str, Any], name: str, field: str) -> str:
    value = item.get(field)
    if not isinstance(value, str) or not value:
        raise _wrong(f"{name}.{field}", value, "a text")
    return value


def _wrong(name: str, value: Any, expected: str) -> ServeError:
    said = f"{name} is {value!r:.80}, expected {expected}"
    return ServeError("validation", said, parameter="input")
