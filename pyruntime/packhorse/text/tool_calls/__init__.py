"""Calls of tools that models write: which form a chat template asks for, and its parser."""

from __future__ import annotations

import re

from packhorse.text.tool_calls.form import CallForm, Grammar
from packhorse.text.tool_calls.hermes import HermesCalls
from packhorse.text.tool_calls.llama import LlamaCalls
from packhorse.text.tool_calls.mistral import MistralCalls, NewMistralCalls
from packhorse.text.tool_calls.parser import CallParser, Part, ToolCall
from packhorse.text.tool_calls.smollm import SmolCalls

__all__ = ["CallForm", "CallParser", "Grammar", "Part", "ToolCall", "parser_for"]

# Texts, all in a template -> its family; the first that fits. None: a form that is not read.
_FAMILIES: tuple[tuple[tuple[str, ...], type[CallParser] | None], ...] = (
    (("[TOOL_CALLS]", "[ARGS]"), NewMistralCalls),
    (("[TOOL_CALLS]",), MistralCalls),
    (("[AVAILABLE_TOOLS]",), MistralCalls),
    (("<function=",), None),  # calls in tags
    (("<arg_key>",), None),
    (("<tool_call>",), HermesCalls),
    (("<|python_tag|>",), LlamaCalls),
    (("ipython", '"parameters"'), LlamaCalls),
)
_A_LIST = re.compile(r"<tool_call>(?:\s|\\n)*\[")


def parser_for(template: str) -> type[CallParser] | None:
    """The parser of the calls of a model with this template; None where their form is not known."""
    found = next((one for texts, one in _FAMILIES if all(text in template for text in texts)), None)
    return SmolCalls if found is HermesCalls and _A_LIST.search(template) else found
