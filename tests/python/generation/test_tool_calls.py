"""Calls of tools in generated text: what is a call of each family, however the text comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checkpoints import GOLDEN
from packhorse.text.tool_calls import CallForm, CallParser, ToolCall, parser_for
from packhorse.text.tool_calls.hermes import HermesCalls
from packhorse.text.tool_calls.llama import LlamaCalls
from packhorse.text.tool_calls.mistral import MistralCalls, NewMistralCalls
from packhorse.text.tool_calls.smollm import SmolCalls

A, B = ToolCall("f", {"a": 1}), ToolCall("g.h-1", {"s": 'x"}]</tool_call>{\\', "n": [{}, []]})
JSON_A, JSON_B = (json.dumps({"name": c.name, "arguments": c.arguments}) for c in (A, B))
ARGS_A, ARGS_B = json.dumps(A.arguments), json.dumps(B.arguments)
LLAMA_A, LLAMA_B = JSON_A.replace("arguments", "parameters"), JSON_B  # either name is taken
TAG = "<|python_tag|>"

# (parser, text, content, calls)
CASES: list[tuple[type[CallParser], str, str, list[ToolCall]]] = [
    (HermesCalls, f"<tool_call>\n{JSON_A}\n</tool_call>", "", [A]),
    (
        HermesCalls,
        f"<tool_call>{JSON_A}</tool_call>\n<tool_call>{JSON_B}</tool_call>\n",
        "",
        [A, B],
    ),
    (HermesCalls, f"Well.\n<tool_call>{JSON_A}</tool_call> Done", "Well.\n Done", [A]),
    (HermesCalls, f"\n\n<tool_call>\n{JSON_B}", "", [B]),  # the last tag is forgotten
    (HermesCalls, '<tool_call>{"name": "f"}</tool_call>', "", [ToolCall("f", {})]),
    (HermesCalls, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [A]),
    (HermesCalls, " \n text < 3 <tool_cal ", " \n text < 3 <tool_cal ", []),
    (HermesCalls, " \n", " \n", []),
    (HermesCalls, '<tool_call>{"name": "f", ', '<tool_call>{"name": "f", ', []),
    (HermesCalls, f"<tool_call>x</tool_call>{JSON_A}", f"<tool_call>x</tool_call>{JSON_A}", []),
    (HermesCalls, f"<tool_call>no <tool_call>{JSON_A}", "<tool_call>no ", [A]),
    (HermesCalls, '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    (
        HermesCalls,
        "<tool_call>{'name': 'f'}</tool_call>",
        "<tool_call>{'name': 'f'}</tool_call>",
        [],
    ),
    (
        HermesCalls,
        '<tool_call>{"name": "f", "arguments": 3}',
        '<tool_call>{"name": "f", "arguments": 3}',
        [],
    ),
    (SmolCalls, f"<tool_call>[{JSON_A}, {JSON_B}]</tool_call>", "", [A, B]),
    (SmolCalls, f"<tool_call>{JSON_A}</tool_call>", "", [A]),
    (SmolCalls, "<tool_call>[]</tool_call>", "", []),
    (SmolCalls, "<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    (LlamaCalls, LLAMA_A, "", [A]),
    (LlamaCalls, f" \n{TAG}{LLAMA_A}; {LLAMA_B};\n{JSON_A}", "", [A, B, A]),
    (LlamaCalls, f"{LLAMA_A}\n{LLAMA_B}\n", "", [A, B]),
    (LlamaCalls, f"So: {TAG}{LLAMA_A}", "So: ", [A]),
    (LlamaCalls, f"So: {LLAMA_A}", f"So: {LLAMA_A}", []),
    (LlamaCalls, '{"name": "Ada", "born": 1815}', '{"name": "Ada", "born": 1815}', []),
    (LlamaCalls, f"{LLAMA_A}; and more", "; and more", [A]),
    (LlamaCalls, f"{TAG}print(1)", f"{TAG}print(1)", []),
    (LlamaCalls, "<|python", "<|python", []),
    (LlamaCalls, "  hello", "  hello", []),
    (MistralCalls, f"[TOOL_CALLS] [{JSON_A}, {JSON_B}]", "", [A, B]),
    (MistralCalls, f"Hm [TOOL_CALLS][{JSON_A}]", "Hm ", [A]),
    (MistralCalls, "[TOOL_CALLS][1, 2]", "[TOOL_CALLS][1, 2]", []),
    (MistralCalls, "[TOOL_CALLS] none", "[TOOL_CALLS] none", []),
    (NewMistralCalls, f"[TOOL_CALLS]f[ARGS]{ARGS_A}[TOOL_CALLS]g.h-1[ARGS]{ARGS_B}", "", [A, B]),
    (NewMistralCalls, f"[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{ARGS_A}", "", [A]),
    (NewMistralCalls, f"Yes[TOOL_CALLS]f{ARGS_A}", "Yes", [A]),
    (NewMistralCalls, "[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f[ARGS][1]", []),
    (NewMistralCalls, "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}", []),
]


def parsed(parser: CallParser, *pieces: str) -> tuple[str, list[ToolCall]]:
    found = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    texts = [part for part in found if isinstance(part, str)]
    assert "" not in texts
    return "".join(texts), [part for part in found if not isinstance(part, str)]


@pytest.mark.parametrize(("family", "text", "content", "calls"), CASES)
def test_calls(family: type[CallParser], text: str, content: str, calls: list[ToolCall]) -> None:
    assert parsed(family(), text) == (content, calls)
    assert parsed(family(), *text) == (content, calls)
    for i in range(1, len(text)):
        assert parsed(family(), text[:i], text[i:]) == (content, calls), text[:i]


def test_text_and_calls_come_as_soon_as_they_are_certain() -> None:
    parser = HermesCalls()
    assert parser.push("Hello <") == ["Hello "]
    assert parser.push("b> <tool_call>") == ["<b> "]
    assert parser.push(JSON_A) == []
    assert parser.push("</tool_call> and ") == [A, " and "]
    assert LlamaCalls().push(LLAMA_A) == [A]
    assert LlamaCalls().push("Hi") == ["Hi"]


def test_a_long_call_takes_time_that_grows_with_its_length() -> None:
    """Every character is looked at a few times at most: the piece that comes last takes no longer
    than the first one."""
    parser = HermesCalls()
    parser.push('<tool_call>{"name": "f", "arguments": {"a": "')
    for _ in range(20_000):
        assert parser.push("abcd\\n") == []
    (call,) = parser.push('"}}</tool_call>')
    assert isinstance(call, ToolCall)
    assert call.arguments["a"] == "abcd\n" * 20_000


@pytest.mark.parametrize(
    "text",
    ['<tool_call>{"', "<tool_call>{", '<tool_call>{"\\"', "<tool_call> [", '<tool_call>{"a":"'],
)
def test_many_beginnings_of_calls_take_time_that_grows_with_their_number(text: str) -> None:
    assert parsed(HermesCalls(), text * 5_000) == (text * 5_000, [])


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("qwen3", HermesCalls),
        ("llama3", LlamaCalls),
        ("mistral", MistralCalls),
        ("chatml", None),
        ("gemma", None),
    ],
)
def test_the_family_of_a_template(template: str, family: type[CallParser] | None) -> None:
    text = (GOLDEN / "chat_templates" / f"{template}.jinja").read_text("utf-8")
    assert parser_for(text) is family


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("{{ '[TOOL_CALLS] [' }}", MistralCalls),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", NewMistralCalls),
        (r"{{ '<tool_call>\n[{\"name\"' }}", SmolCalls),
        (r"{{ '<tool_call>\n<function=' }}", None),
        ("{{ '<|python_tag|>' }}", LlamaCalls),
    ],
)
def test_the_family_of_a_text(text: str, family: type[CallParser] | None) -> None:
    assert parser_for(text) is family


def test_ids() -> None:
    assert HermesCalls.new_id().startswith("call_")
    assert HermesCalls.new_id() != HermesCalls.new_id()
    assert len(MistralCalls.new_id()) == 9
    assert MistralCalls.new_id().isalnum()


# --- grammars

FUNCTIONS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/number"}},
        "required": ["a"],
        "$defs": {"number": {"enum": [1]}},
    },
    "g": None,
}


@pytest.mark.parametrize(
    "family", [HermesCalls, SmolCalls, LlamaCalls, MistralCalls, NewMistralCalls]
)
@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_a_grammar_gives_calls_of_the_family(
    family: type[CallParser], tokens: bool, several: bool
) -> None:
    """Text made by chance under the grammar, with markers that are tokens of their own or not."""
    pytest.importorskip("llguidance")
    from tool_grammars import texts

    made = texts(family, FUNCTIONS, several=several, tokens=tokens, count=12)
    names = set()
    for text in made:
        content, calls = parsed(family(), text)
        assert content == ""
        assert len(calls) >= 1
        assert several or len(calls) == 1
        for call in calls:
            assert call in (ToolCall("f", {"a": 1}), ToolCall("g", {}))
            names.add(call.name)
    assert names == {"f", "g"}


def test_a_reference_within_parameters_finds_its_place() -> None:
    form = CallForm(FUNCTIONS, False, lambda _: None)
    assert '"#/properties/arguments/$defs/number"' in HermesCalls.grammar(form)
