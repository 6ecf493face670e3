"""Chat templates: the prompts of transformers, and what is refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from chat_cases import CASES, REFUSED, SPECIAL_TOKENS, USER
from checkpoints import GOLDEN

pytest.importorskip("jinja2")

from packhorse.text.chat_template import ChatTemplates

PROMPTS = json.loads((GOLDEN / "chat_templates.json").read_text("utf-8"))["prompts"]


def templates(name: str) -> ChatTemplates:
    text = (GOLDEN / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    return ChatTemplates({"default": text}, SPECIAL_TOKENS)


@pytest.mark.parametrize("name", CASES)
def test_prompts_of_transformers(name: str) -> None:
    template, messages, options = CASES[name]
    assert templates(template).render(messages, **options) == PROMPTS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_template_refuses_is_a_value_error(name: str) -> None:
    template, messages, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        templates(template).render(messages)


def test_templates_know_the_date() -> None:
    made = templates("llama3").render([USER])
    assert f"Today Date: {datetime.now().strftime('%d %b %Y')}" in made


def test_a_template_is_chosen() -> None:
    several = ChatTemplates({"default": "plain", "tool_use": "tools", "rag": "rag"}, {})
    tool = {"type": "function", "function": {"name": "f"}}
    assert several.render([USER]) == "plain"
    assert several.render([USER], tools=[tool]) == "tools"
    assert several.render([USER], chat_template="rag") == "rag"
    assert several.render([USER], chat_template="{{ messages|length }}") == "1"
    with pytest.raises(ValueError, match="'rga' is neither .*: default, tool_use, rag"):
        several.render([USER], chat_template="rga")


@pytest.mark.parametrize(
    ("known", "message"),
    [({}, "no chat template"), ({"a": "", "b": ""}, "several chat templates .* a, b")],
)
def test_no_template_to_choose(known: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChatTemplates(known, {}).render([USER])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% for x in range(10**9) %}{% endfor %}",
        "{{ messages[0].nothing.more }}",
        "{% if %}",
    ],
)
def test_templates_run_in_a_sandbox(template: str) -> None:
    with pytest.raises(ValueError, match="chat template: "):
        ChatTemplates({"default": template}, {}).render([USER])


@pytest.mark.parametrize(
    "messages", ["hello", [], {"role": "user", "content": "x"}, ["x"], [{"content": "x"}], 3]
)
def test_what_is_no_conversation(messages: Any) -> None:
    with pytest.raises(ValueError, match="messages.* is .*, expected"):
        templates("chatml").render(messages)


def test_messages_stay_as_they_are() -> None:
    messages = [dict(USER)]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    templates("chatml").render(messages, **options)
    assert messages == [USER]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"continue_final_message": True}, "add_generation_prompt=False"),
        (
            {
                "continue_final_message": True,
                "add_generation_prompt": False,
                "chat_template": "nothing",
            },
            "does not write the last message",
        ),
    ],
)
def test_what_cannot_be_continued(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        templates("chatml").render([USER], **options)
