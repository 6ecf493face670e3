"""Chat templates: the prompts of transformers, and what is refused."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from chat_cases import CASES, CONTINUED, FIXED_DATE, REFUSED, SPECIAL_TOKENS, USER
from checkpoints import GOLDEN
from tool_cases import weather

pytest.importorskip("jinja2")

from packhorse.text.generation.chat_template import ChatTemplates
from packhorse.text.generation.tool_schema import tool_schemas

CHAT = json.loads((GOLDEN / "chat_templates.json").read_text("utf-8"))
PROMPTS = CHAT["prompts"]
CONTINUING: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}


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
    several = ChatTemplates(
        {"default": "plain", "tool_use": "{{ tools|length }}", "rag": "rag"}, {}
    )
    tool = {"type": "function", "function": {"name": "f"}}
    assert several.render([USER]) == "plain"
    assert several.render([USER], tools=[tool]) == "1"
    assert several.render([USER], chat_template="rag") == "rag"
    assert several.render([USER], chat_template="{{ messages|length }}") == "1"
    with pytest.raises(ValueError, match="'rga' is neither .*: default, tool_use, rag"):
        several.render([USER], chat_template="rga")
    two = ChatTemplates({"default": "plain", "rag": "rag"}, {})
    with pytest.raises(ValueError, match="'rga' is neither .*: default, rag"):
        two.render([USER], chat_template="rga")
    alone = ChatTemplates({"default": "plain"}, {})  # has no names: a word is a template
    assert alone.render([USER], chat_template="rga") == "rga"


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


def test_functions_are_tools() -> None:
    (schema,) = tool_schemas([weather])
    made = templates("qwen3").render([USER], tools=[weather])
    assert json.dumps(schema) in made
    assert made == templates("qwen3").render([USER], tools=[schema])
    with pytest.raises(ValueError, match=r"tools\[0\] is 3"):
        templates("qwen3").render([USER], tools=[3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tools", {"tools": [weather]}),
        ("documents", {"documents": [{"text": "x"}]}),
    ],
)
def test_what_a_template_has_no_place_for_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{name}: .* template has no place"):
        templates("chatml").render([USER], **options)
    assert templates("chatml").render([USER], **{name: []}) == PROMPTS["chatml"]


LOOP = "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
EITHER = (
    "{% macro text(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for p in content %}[{{ p.text }}]{% endfor %}{% endif %}{% endmacro %}"
    "{% set rest = messages[0:] %}{% for m in rest %}{{ text(m.content) }}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
PARTS = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (PLAIN, "a", "a"),
        (PLAIN, PARTS, "a\nb"),
        (LOOP, "a", "[a]"),
        (LOOP, PARTS, "[a][b]"),
        (EITHER, "a", "a"),
        (EITHER, PARTS, "[a][b]"),
        (PLAIN, [{"type": "refusal", "refusal": "no"}], "no"),
        ("{{ 'content' in messages[0] }}", None, "False"),
    ],
)
def test_contents_in_parts(template: str, content: Any, expected: str) -> None:
    made = ChatTemplates({"default": template}, {})
    assert made.render([{"role": "user", "content": content}]) == expected


@pytest.mark.parametrize("template", [PLAIN, LOOP])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"type": "image_url", "image_url": {}}], r"content\[0\] is of type 'image_url'"),
        ([{"type": {}, "text": "a"}], r"content\[0\] is {'type': {}, 'text': 'a'}, expected"),
        ([PARTS[0], {"type": "text"}], r"content\[1\] is {'type': 'text'}, expected"),
        ([1], r"content\[0\] is 1, expected"),
        (7, r"messages\[0\].content is 7, expected a text or a list of parts"),
    ],
)
def test_contents_that_are_no_text(template: str, content: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ChatTemplates({"default": template}, {}).render([{"role": "user", "content": content}])


@pytest.mark.parametrize("name", CHAT["continued"])
def test_answers_are_continued_as_by_transformers(name: str) -> None:
    template, content = CONTINUED[name]
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
    options: dict[str, Any] = {"template_args": FIXED_DATE, **CONTINUING}
    if CHAT["continued"][name] is None:
        with pytest.raises(ValueError, match="does not write the last message as it is"):
            templates(template).render(chat, **options)
    else:
        assert templates(template).render(chat, **options) == CHAT["continued"][name]


CUT = PLAIN.replace("m.content | trim", "m['content'].split('</think>')[-1]")


def continued(template: str, content: Any) -> str:
    # A message before has the text, too.
    chat = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
    return ChatTemplates({"default": template}, {}).render(chat, **CONTINUING)


@pytest.mark.parametrize("content", ["</think>", "<think>a</think>The answer"])
def test_a_last_message_without_its_beginning_is_not_continued(content: str) -> None:
    for given in (content, [{"type": "text", "text": content}]):
        with pytest.raises(ValueError, match="does not write the last message as it is: '<"):
            continued(CUT, given)
        with pytest.raises(ValueError, match="does not write the last message as it is: '<"):
            continued(LOOP.replace("p.text", "p.text.split('</think>')[-1]"), given)
    assert continued(CUT, "plain ") == "plain plain "
    assert continued(PLAIN, "plain ") == "plainplain"
    assert continued(LOOP, "ab") == "[ab][ab"
    assert continued(CUT, "") == ""


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
