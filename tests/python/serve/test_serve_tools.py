"""`packhorse serve`: tools of chats, as OpenAI's clients ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serve_room import PACKAGES, Client, serve_chance, serving, settings_for
from tool_models import TIME, WEATHER, Speaker, speaker

for package in (*PACKAGES, "llguidance", "jinja2"):
    pytest.importorskip(package)

CHAT = "/v1/chat/completions"
ASKED = {"role": "user", "content": "How is the weather in Ur?"}
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ur"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
MISTRAL = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Ur"}}]'
BODY = {"messages": [ASKED], "tools": [WEATHER, TIME], "temperature": 0}
MISTRAL_TEMPLATE = (
    "{% for t in tools or [] %}[AVAILABLE]{{ t|tojson }}{% endfor %}{% for m in messages %}"
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.arguments.city }}{% endfor %}"
    "{{ m.role }}: {{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def models() -> Iterator[list[Any]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        makers = {
            "qwen": lambda: speaker("qwen3"),
            "mistral": lambda: speaker(MISTRAL_TEMPLATE),
            "plain": lambda: speaker("chatml"),
        }
        yield serve_chance(monkeypatch, **makers)


@pytest.fixture(scope="module")
def client(models: list[Any]) -> Iterator[Client]:
    with serving(settings_for("qwen=qwen", "mistral=mistral", "plain=plain")) as (found, _):
        yield found


@pytest.fixture
def qwen(client: Client, models: list[Any]) -> Speaker:
    found: Speaker = models[0]
    found.says = HERMES
    return found


def ask(client: Client, **fields: Any) -> Any:
    answer = client.post(CHAT, {**BODY, **fields})
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]


def streamed(client: Client, **fields: Any) -> tuple[dict[str, Any], str]:
    """(the message that the pieces of a stream make, as a client joins them; the reason)"""
    answer = client.post(CHAT, {**BODY, **fields, "stream": True})
    assert answer.status == 200, answer.body
    content, calls, reason = "", dict[int, Any](), ""
    for event in answer.events:
        (choice,) = event["choices"]
        content += choice["delta"].get("content", "")
        reason = choice["finish_reason"] or reason
        for piece in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
            call |= {name: piece[name] for name in ("id", "type") if name in piece}
            for name, text in piece["function"].items():
                call["function"][name] += text
    assert list(calls) == list(range(len(calls)))
    return {"content": content or None, "tool_calls": list(calls.values())}, reason


def plain(calls: list[Any]) -> list[Any]:
    assert all(call["type"] == "function" and call["id"] for call in calls)
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]


@pytest.mark.parametrize("says", [HERMES, f"Let me see.\n{HERMES}\n{NOW}"])
def test_calls(client: Client, qwen: Speaker, says: str) -> None:
    qwen.says = says
    choice = ask(client)
    expected = [("weather", {"city": "Ur"}), ("time", {})][: says.count("<tool_call>")]
    assert choice["finish_reason"] == "tool_calls"
    assert plain(choice["message"]["tool_calls"]) == expected
    assert choice["message"]["content"] == (says.partition("<")[0] or None)
    assert '"name": "weather"' in qwen.prompt
    message, reason = streamed(client)
    assert (plain(message["tool_calls"]), reason) == (expected, "tool_calls")
    assert message["content"] == choice["message"]["content"]
    first = ask(client, parallel_tool_calls=False)["message"]
    assert plain(first["tool_calls"]) == expected[:1]
    message, _ = streamed(client, parallel_tool_calls=False)
    assert plain(message["tool_calls"]) == expected[:1]


@pytest.mark.parametrize("says", ["It rains.", "<tool_call>no</tool_call>", '{"name": "x"} <tool_'])
def test_what_is_no_call_is_content(client: Client, qwen: Speaker, says: str) -> None:
    qwen.says = says
    choice = ask(client)
    assert choice["message"] == {"role": "assistant", "content": says, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert streamed(client) == ({"content": says, "tool_calls": []}, "stop")


def test_a_marker_that_is_a_special_token(client: Client, qwen: Speaker, models: list[Any]) -> None:
    models[1].says = MISTRAL
    (call,) = ask(client, model="mistral")["message"]["tool_calls"]
    assert plain([call]) == [("weather", {"city": "Ur"})]
    assert len(call["id"]) == 9


@pytest.mark.parametrize("model", ["qwen", "mistral"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
def test_a_call_that_must_come(client: Client, model: str, choice: Any) -> None:
    found = ask(client, model=model, tool_choice=choice, seed=3)
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    calls = plain(found["message"]["tool_calls"])
    assert {name for name, _ in calls} <= {"weather", "time"}
    if choice != "required":
        assert calls == [("time", {})]
    message, _ = streamed(client, model=model, tool_choice=choice, seed=3)
    assert plain(message["tool_calls"]) == calls


def test_no_tool_is_to_be_called(client: Client, qwen: Speaker) -> None:
    found = ask(client, tool_choice="none")
    assert (found["message"]["content"], found["finish_reason"]) == (HERMES, "stop")
    assert "<tools>" not in qwen.prompt
    assert ask(client, tools=[], tool_choice="auto")["message"] == found["message"]
    assert ask(client, tools=None, tool_choice=None)["message"] == found["message"]


def test_several_texts_have_calls_of_their_own(client: Client, qwen: Speaker) -> None:
    answer = client.post(CHAT, {**BODY, "n": 2}).json
    ids = [one["message"]["tool_calls"][0]["id"] for one in answer["choices"]]
    assert len(set(ids)) == 2
    events = client.post(CHAT, {**BODY, "n": 2, "stream": True}).events
    found = [c for event in events for c in event["choices"] if "tool_calls" in c["delta"]]
    assert sorted(one["index"] for one in found) == [0, 1]


def test_logprobs_are_of_all_tokens(client: Client, qwen: Speaker) -> None:
    whole = ask(client, logprobs=True)["logprobs"]["content"]
    assert "".join(one["token"] for one in whole) == HERMES
    events = client.post(CHAT, {**BODY, "logprobs": True, "stream": True}).events
    pieces = [c["logprobs"]["content"] for e in events for c in e["choices"] if c["logprobs"]]
    assert [one for piece in pieces for one in piece] == whole


@pytest.mark.parametrize("arguments", ['{"city": "Ur"}', {"city": "Ur"}])
@pytest.mark.parametrize("model", ["qwen", "mistral"])
def test_calls_and_results_in_messages(
    client: Client, models: list[Any], model: str, arguments: Any
) -> None:
    call = {
        "id": "a" * 9,
        "type": "function",
        "function": {"name": "weather", "arguments": arguments},
    }
    messages = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a" * 9, "content": [{"type": "text", "text": "rain"}]},
    ]
    ask(client, model=model, messages=messages)
    prompt = models[0 if model == "qwen" else 1].prompt
    assert (HERMES if model == "qwen" else "[TOOL_CALLS]Ur") in prompt
    assert "rain" in prompt
    assert "None" not in prompt


CALL: dict[str, Any] = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{"}}
NAMED = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_parameters_that_are_nested_deeply(client: Client, choice: str) -> None:
    parameters: dict[str, Any] = {}
    for _ in range(400):
        parameters = {"type": "object", "properties": {"a": parameters}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    answer = client.post(CHAT, {**BODY, "tools": [tool], "tool_choice": choice})
    assert answer.status in (200, 400)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": 3}, "tools is 3, expected a list of functions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0] of type 'web_search' is not supported"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0] is"),
        ({"tools": [TIME] * 129}, "tools has 129 items, at most 128"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice is 'required', expected tools"),
        ({"tool_choice": "any"}, "tool_choice is 'any', expected"),
        ({"tool_choice": NAMED}, "tool_choice names 'g', expected one of the tools: weather, time"),
        ({"tool_choice": "required", "regex": "a"}, "it without another form of the output"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls is 'no', expected true or false"),
        ({"model": "plain"}, "tools: this model's chat template has no place for them"),
        ({"functions": [{"name": "f"}]}, "functions is not supported"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "arguments is '{', expected"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "tool_calls[0] is {}, expected",
        ),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content is None, expected a text"),
        ({"messages": [{"role": "function", "content": "x"}]}, 'role "function" is not supported'),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}
                ],
                "tool_choice": "required",
            },
            "tools: ",
        ),
    ],
)
def test_what_is_refused(client: Client, fields: dict[str, Any], said: str) -> None:
    answer = client.post(CHAT, {**BODY, **fields})
    assert answer.status in (400, 413), answer.body
    assert said in answer.json["error"]["message"]
