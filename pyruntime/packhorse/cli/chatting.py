"""A conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse.cli.generating import load_generator, print_stream

_HELP = "/reset forgets what was said, /exit ends; Ctrl-C ends an answer"


def talk(
    model: str,
    system: str | None,
    load: Mapping[str, Any],
    adapter: Path | None,
    options: Mapping[str, Any],
) -> None:
    """Reads messages from stdin, one in each line, until /exit or its end."""
    begin = [] if system is None else [{"role": "system", "content": system}]
    with load_generator(model, load, adapter) as generator:
        plan = generator.generation_session.memory_plan
        print(f"[{plan.kv_tokens:,} tokens of cache; {_HELP}]", file=sys.stderr)
        messages = list(begin)
        while (line := _ask()) is not None:
            if line == "/reset":
                messages = list(begin)
                print("[forgotten]", file=sys.stderr)
            elif line == "/exit":
                break
            elif line.startswith("/"):
                print(f"[{line.split()[0]} is not known: {_HELP}]", file=sys.stderr)
            elif line.strip():
                messages = _answer(generator, [*messages, _message("user", line)], options)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _ask() -> str | None:
    """The next line; None at the end of stdin. The prompt goes to a terminal alone."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _answer(
    generator: Any, messages: list[dict[str, str]], options: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Prints the answer to the last message. Returns the conversation with it, or without the
    message if there is none."""
    try:
        stream = generator.chat(messages, stream=True, **options)
    except ValueError as error:  # the message is refused, for example one beyond the context
        if len(messages) == 1:
            raise
        print(f"packhorse: {error}", file=sys.stderr)
        return messages[:-1]
    result = print_stream(stream)
    if result is None:  # an answer that was ended is not remembered
        print("[ended]", file=sys.stderr)
        return messages[:-1]
    return [*messages, _message("assistant", result.text)]
