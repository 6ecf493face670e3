"""Conversations with tools in Python: what comes back, and what has to come."""

from __future__ import annotations

from typing import Any

import pytest
from tool_cases import weather
from tool_models import TIME, WEATHER, speaker

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

CHAT = [{"role": "user", "content": "How is the weather in Ur?"}]
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ur"}}\n</tool_call>'
MISTRAL = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ur"}}]'
LLAMA = '<|python_tag|>{"name": "weather", "parameters": {"city": "Ur"}}'
NEW = "{% for t in tools or [] %}{{ t|tojson }}{% endfor %}{{ '[TOOL_CALLS]f[ARGS]{}' }}"
TEXTS = [
    ("qwen3", HERMES),
    ("llama3", LLAMA),
    (NEW.replace("f[ARGS]{}", ""), MISTRAL),
    (NEW, '[TOOL_CALLS]weather[ARGS]{"city": "Ur"}'),
]


@pytest.mark.parametrize(("template", "text"), TEXTS)
@pytest.mark.parametrize("logprobs", [None, 0])
def test_calls_come_back(template: str, text: str, logprobs: int | None) -> None:
    with speaker(template, f"Wait. {text}") as lm:
        found = lm.chat(CHAT, tools=[weather], details=True, logprobs=logprobs)
        assert found.text == f"Wait. {text}"  # the special tokens of the form included
        assert found.content == "Wait. "
        assert found.finish_reason == "tool_calls"
        assert found.tool_calls is not None
        (call,) = found.tool_calls
        assert call["type"] == "function"
        assert call["function"] == {"name": "weather", "arguments": {"city": "Ur"}}
        with lm.chat(CHAT, tools=[weather], stream=True) as stream:
            assert "".join(stream) == found.text
        assert stream.result.tool_calls is not None
        assert stream.result.tool_calls[0]["function"] == call["function"]
        plain = lm.chat(CHAT, details=True)
        assert (plain.tool_calls, plain.content, plain.finish_reason) == (None, None, "stop")


def test_an_answer_without_calls() -> None:
    with speaker("qwen3", "It rains.") as lm:
        found = lm.chat(CHAT, tools=[WEATHER], details=True)
        assert (found.tool_calls, found.content) == ([], "It rains.")
        assert found.finish_reason == "stop"


def test_only_one_call() -> None:
    with speaker("qwen3", HERMES * 2) as lm:
        both = lm.chat(CHAT, tools=[WEATHER], details=True).tool_calls
        one = lm.chat(CHAT, tools=[WEATHER], details=True, parallel_tool_calls=False).tool_calls
        assert both is not None
        assert one is not None
        assert (len(both), len(one)) == (2, 1)
        assert both[0]["id"] != both[1]["id"]
        none = lm.chat(CHAT, tools=[WEATHER], details=True, parallel_tool_calls=None).tool_calls
        assert none is not None
        assert len(none) == 2
        with pytest.raises(ValueError, match="parallel_tool_calls is 1, expected True or False"):
            lm.chat(CHAT, tools=[WEATHER], parallel_tool_calls=1)  # type: ignore[call-overload]


def test_the_call_goes_back_into_the_conversation() -> None:
    with speaker("qwen3", HERMES) as lm:
        made = lm.chat(CHAT, tools=[WEATHER], details=True)
        answer = {"role": "assistant", "content": made.content, "tool_calls": made.tool_calls}
        result = {"role": "tool", "content": "rain"}
        prompt = lm.apply_chat_template([*CHAT, answer, result], tools=[WEATHER])
        assert HERMES in prompt
        assert "<tool_response>\nrain\n</tool_response>" in prompt


@pytest.mark.parametrize(("template", "text"), TEXTS)
def test_a_call_that_must_come(template: str, text: str) -> None:
    pytest.importorskip("llguidance")
    named = {"type": "function", "function": {"name": "weather"}}
    with speaker(template) as lm:
        for seed in range(4):
            for choice in (named, named["function"], "required"):
                found = lm.chat(
                    CHAT, tools=[TIME, WEATHER], tool_choice=choice, seed=seed, details=True
                )
                assert found.content == ""
                assert found.tool_calls
                for call in found.tool_calls:
                    function = call["function"]
                    if function["name"] == "weather":
                        assert function["arguments"]["city"] in ("Ur", "Uz")
                    else:
                        assert (choice, function["arguments"]) == ("required", {})
                if choice != "required":
                    assert len(found.tool_calls) == 1


def test_no_tool_is_to_be_called() -> None:
    with speaker("qwen3", HERMES) as lm:
        found = lm.chat(CHAT, tools=[WEATHER], tool_choice="none", details=True)
        assert (found.tool_calls, found.content, found.finish_reason) == (None, None, "stop")
        assert "weather" not in lm.prompt.replace(CHAT[0]["content"], "")


UNKNOWN = "{{ tools }}{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("template", "options", "said"),
    [
        ("qwen3", {"tool_choice": "required"}, "tool_choice is 'required', expected tools with it"),
        ("qwen3", {"tools": [TIME], "tool_choice": "any"}, "tool_choice is 'any', expected \"none"),
        ("qwen3", {"tools": [TIME], "tool_choice": {}}, "tool_choice is {}, expected"),
        (
            "qwen3",
            {"tools": [TIME], "tool_choice": {"name": "g"}},
            "names 'g', expected one .* time",
        ),
        ("qwen3", {"tools": [{"function": {}}]}, r"tools\[0\] is .*, expected {\"type\""),
        (
            "qwen3",
            {"tools": [TIME], "tool_choice": "required", "regex": "a"},
            "and regex was given",
        ),
        ("chatml", {"tools": [TIME]}, "tools: this model's chat template has no place for them"),
        (UNKNOWN, {"tools": [TIME], "tool_choice": "required"}, "tools: how .* is not known"),
    ],
)
def test_what_is_refused(template: str, options: dict[str, Any], said: str) -> None:
    with speaker(template) as lm, pytest.raises(ValueError, match=said):
        lm.chat(CHAT, **options)


def test_calls_of_a_form_that_is_not_known_stay_text() -> None:
    with speaker(UNKNOWN, HERMES) as lm:
        found = lm.chat(CHAT, tools=[TIME], details=True)
        assert (found.text, found.tool_calls) == (HERMES, None)


def test_special_tokens_are_shown() -> None:
    with speaker("chatml", "a[ARGS]b[TOOL_CALLS]") as lm:
        assert lm.generate("x") == "ab"
        assert lm.generate("x", shown_special_tokens=["[ARGS]"]) == "a[ARGS]b"
        assert lm.generate("x", shown_special_tokens=["[ARGS]", "[TOOL_CALLS]"]) == lm.says
        for wrong in ("[ARGS]", ["a"], ["<tool_call>"], [3], 5):
            with pytest.raises(ValueError, match="shown_special_tokens"):
                lm.generate("x", shown_special_tokens=wrong)  # type: ignore[call-overload]
