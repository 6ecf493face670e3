"""`packhorse serve`: OpenAI's responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serve_room import PACKAGES, Client, serve_chance, serving, settings_for
from tool_models import TIME, WEATHER, Speaker, speaker

for package in (*PACKAGES, "llguidance", "jinja2"):
    pytest.importorskip(package)

PATH = "/v1/responses"
ASKED = "How is the weather in Ur?"
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ur"}}\n</tool_call>'
TOOLS = [{"type": "function", "strict": True, **one["function"]} for one in (WEATHER, TIME)]
BODY = {"input": ASKED, "temperature": 0}


@pytest.fixture(scope="module")
def models() -> Iterator[list[Any]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield serve_chance(monkeypatch, qwen=lambda: speaker("qwen3"))


@pytest.fixture(scope="module")
def client(models: list[Any]) -> Iterator[Client]:
    with serving(settings_for("qwen=qwen", "lm=chance")) as (found, _):
        yield found


@pytest.fixture
def qwen(client: Client, models: list[Any]) -> Speaker:
    found: Speaker = models[0]
    found.says = "It rains."
    return found


def ask(client: Client, **fields: Any) -> Any:
    answer = client.post(PATH, {**BODY, **fields})
    assert answer.status == 200, answer.body
    return answer.json


def text_of(response: Any) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    assert (item["type"], item["status"], item["role"]) == ("message", "completed", "assistant")
    found: str = part["text"]
    return found


def test_a_text(client: Client, qwen: Speaker) -> None:
    response = ask(client, instructions="Be brief.")
    assert text_of(response) == "It rains."
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    assert response["instructions"] == "Be brief."
    assert response["usage"]["output_tokens"] == len("It rains.") + 1
    assert qwen.prompt.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow is"
    )
    cut = ask(client, max_output_tokens=4)
    assert (text_of(cut), cut["status"]) == ("It r", "incomplete")
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


def test_items(client: Client, qwen: Speaker) -> None:
    call = {"call_id": "c1", "name": "weather", "arguments": '{"city": "Ur"}'}
    given = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASKED}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", **call},
        {"type": "function_call", "id": "fc_1", "status": "completed", **call},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "sun"}],
        },
    ]
    ask(client, input=given)
    assert qwen.prompt.count(HERMES) == 2
    for text in ("system\nBe brief.", ASKED, "assistant\nLet me see.", "rain", "sun"):
        assert text in qwen.prompt
    # Output is taken as input again.
    qwen.says = HERMES
    output = ask(client, tools=TOOLS)["output"]
    result = {"type": "function_call_output", "call_id": output[0]["call_id"], "output": "rain"}
    ask(client, input=[{"role": "user", "content": ASKED}, *output, result], tools=TOOLS)
    assert qwen.prompt.count(HERMES) == 1


def test_calls(client: Client, qwen: Speaker) -> None:
    qwen.says = f"Well.{HERMES}{HERMES} Done."
    response = ask(client, tools=TOOLS)
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["message", "function_call", "function_call", "message"]
    for item in response["output"][1:3]:
        assert (item["name"], json.loads(item["arguments"])) == ("weather", {"city": "Ur"})
        assert item["call_id"].startswith("call_")
    assert response["tools"] == TOOLS
    assert len({item["id"] for item in response["output"]}) == 4
    assert '"strict"' not in qwen.prompt
    one = ask(client, tools=TOOLS, parallel_tool_calls=False)["output"]
    assert [item["type"] for item in one].count("function_call") == 1


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "time"}])
def test_a_call_that_must_come(client: Client, qwen: Speaker, choice: Any) -> None:
    output = ask(client, tools=TOOLS, tool_choice=choice)["output"]
    names = {item["name"] for item in output}
    assert names == {"time"} if choice != "required" else names <= {"time", "weather"}


def test_a_schema(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    body = {"input": "tr", "model": "lm", "text": {"format": form, "verbosity": "medium"}}
    response = client.post(PATH, body).json
    assert json.loads(text_of(response))["sure"] in (True, False)
    assert response["text"] == {"format": form}


@pytest.mark.parametrize("says", ["It rains.", "", f"Well.{HERMES}", HERMES, f"{HERMES}{HERMES}"])
def test_events(client: Client, qwen: Speaker, says: str) -> None:
    qwen.says = says
    whole = ask(client, tools=TOOLS)
    events = client.post(PATH, {**BODY, "tools": TOOLS, "stream": True}).events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert (kinds[0], kinds[1], kinds[-1]) == ("created", "in_progress", "completed")
    assert events[0]["response"]["output"] == []
    # The pieces make the items that the last event has, and so does a client that joins them.
    made: list[Any] = []
    for event in events:
        kind, index = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            assert index == len(made)
            made.append(event["item"])
        elif kind == "content_part.added":
            assert made[index]["content"] == []
            made[index]["content"].append(event["part"])
        elif kind == "output_text.delta":
            made[index]["content"][0]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            made[index]["arguments"] += event["delta"]
        elif kind == "output_text.done":
            assert event["text"] == made[index]["content"][0]["text"]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == made[index]["arguments"]
        elif kind == "output_item.done":
            made[index]["status"] = "completed"
            assert event["item"] == made[index]
        if "item_id" in event:
            assert event["item_id"] == made[index]["id"]
    assert made == events[-1]["response"]["output"]
    last = events[-1]["response"]
    for response in (whole, last):
        for item in response["output"]:
            for name in ("id", "call_id"):
                item.pop(name, None)
    assert last["output"] == whole["output"]
    assert last["usage"].keys() == whole["usage"].keys()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"store": True}, "store is not supported, found true: the server keeps no responses"),
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"background": True}, "background is not supported"),
        ({"truncation": "auto"}, "truncation is not supported"),
        ({"include": ["x"]}, "include is not supported"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort is not supported"),
        ({"text": {"verbosity": "low"}}, "text.verbosity is not supported"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type is 'xml'"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema is missing"),
        ({"max_tokens": 3}, "max_tokens is not supported"),
        ({"input": None}, "input is missing, expected a text, or a list of"),
        ({"input": []}, "input is empty"),
        ({"input": [3]}, "input[0] is 3, expected a message"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role is 'tool', expected"),
        ({"input": [{"type": "reasoning"}]}, "input[0] of type 'reasoning' is not supported"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "content of type 'input_image' is not supported",
        ),
        ({"input": [{"role": "user", "content": [{"type": []}]}]}, "input[0].content is [{'type'"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name is None"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id is None"),
        ({"tools": [{"type": "web_search"}]}, "tools[0] of type 'web_search' is not supported"),
        ({"tool_choice": "required"}, "tool_choice is 'required', expected tools"),
        ({"stream_options": {}}, "stream_options is {}, expected it to come with stream"),
    ],
)
def test_what_is_refused(client: Client, fields: dict[str, Any], said: str) -> None:
    answer = client.post(PATH, {**BODY, **fields})
    assert answer.status == 400, answer.body
    assert said in answer.json["error"]["message"]


def test_form_of_no_type_is_a_text(client: Client, qwen: Speaker) -> None:
    for form in ({"type": None}, {"type": "text", "schema": None}):
        assert ask(client, text={"format": form})["text"] == {"format": {"type": "text"}}


def test_what_says_nothing_is_taken(client: Client, qwen: Speaker) -> None:
    response = ask(client, store=False, previous_response_id=None, reasoning={"effort": None})
    assert text_of(response) == "It rains."
