"""`packhorse serve`: bodies of OpenAI's routes with one value, at any depth, that is another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mutations import mutations
from serve_room import PACKAGES, Client, serve_chance, serving, settings_for
from tool_models import TIME, speaker

for package in (*PACKAGES, "llguidance", "jinja2"):
    pytest.importorskip(package)

CALL = {"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}
SCHEMA = {"name": "a", "schema": {"type": "object"}}
CHAT = {
    "model": "qwen",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "tool_calls": [CALL]},
    ],
    "tools": [TIME],
    "tool_choice": {"type": "function", "function": {"name": "time"}},
}
FORM = {
    "model": "qwen",
    "messages": [{"role": "user", "content": "Hi"}],
    "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    "stop": ["a"],
    "logit_bias": {"1": 2},
    "stream_options": {"include_usage": True},
}
RESPONSE = {
    "model": "qwen",
    "input": [
        {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "1"}],
        },
    ],
    "tools": [{"type": "function", **TIME["function"]}],
    "text": {"format": {"type": "json_schema", **SCHEMA}},
    "metadata": {"a": "b"},
    "user": "u",
}
TEXT = {"model": "qwen", "input": "Hi", "text": {"format": {"type": "text", "schema": None}}}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        models = serve_chance(monkeypatch, qwen=lambda: speaker("qwen3"))
        with serving(settings_for("qwen=qwen")) as (found, _):
            models[0].says = "It rains."
            yield found


@pytest.mark.parametrize(
    ("path", "limit", "body"),
    [
        ("/v1/chat/completions", "max_tokens", CHAT),
        ("/v1/chat/completions", "max_tokens", FORM),
        ("/v1/responses", "max_output_tokens", RESPONSE),
        ("/v1/responses", "max_output_tokens", TEXT),
    ],
    ids=["tools", "form", "responses", "text"],
)
def test_a_mutated_body_is_no_error_of_the_server(
    client: Client, path: str, limit: str, body: dict[str, Any]
) -> None:
    for what, made in mutations({limit: 1, **body}, depth=6):
        answer = client.post(path, made)
        assert answer.status < 500, (what, answer.body)
