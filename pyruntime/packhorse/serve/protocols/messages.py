"""Messages of conversations, as OpenAI's route of chats takes them."""

from __future__ import annotations

from typing import Any

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields, check_count
from packhorse.serve.protocols.tools import calls_of_message
from packhorse.text.generation.message_content import TEXT_PARTS

MOST_MESSAGES = 10_000


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """The conversation, as templates take it. Raises ServeError."""
    value = fields.get("messages")
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        fields.wrong("messages", 'a list of {"role": ..., "content": ...}')
    check_count("messages", len(value), MOST_MESSAGES)
    return [_message(message, i) for i, message in enumerate(value)]


def _message(message: dict[str, Any], number: int) -> dict[str, Any]:
    where = f"messages[{number}]"
    for name in ("function_call", "audio"):
        if message.get(name):
            raise ServeError("unsupported", f"{where}.{name} is not supported")
    if message.get("role") == "function":
        raise ServeError("unsupported", f'{where}: role "function" is not supported, but "tool" is')
    found = dict(message)
    if message.get("tool_calls"):
        calls = calls_of_message(message["tool_calls"], f"{where}.tool_calls")
        found["tool_calls"] = calls
    else:
        found.pop("tool_calls", None)
    if message.get("content") is not None or "tool_calls" not in found:
        check_content(message.get("content"), f"{where}.content")
    return found


def check_content(content: Any, name: str) -> None:
    """Raises ServeError for what is neither a text nor parts of text."""
    if isinstance(content, str):
        return
    expected = f"{name} is {content!r:.80}, expected a text or parts of text"
    parameter = name.partition("[")[0]
    if not isinstance(content, list):
        raise ServeError("validation", expected, parameter=parameter)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in TEXT_PARTS:
            raise ServeError(
                "unsupported",
                f"{name.rpartition('.')[0]}: content of type {kind!r:.40} is not supported",
                parameter=parameter,
            )
        if not isinstance(kind, str) or not isinstance(part.get(TEXT_PARTS[kind]), str):
            raise ServeError("validation", expected, parameter=parameter)
