"""The tools of one conversation: which may be called, and how calls are found in an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from packhorse.generation.results import Generation
from packhorse.text.generation.tool_schema import Schema, tool_schemas
from packhorse.text.tool_calls import CallForm, CallParser, parser_for

if TYPE_CHECKING:
    from packhorse.text.tokenization.tokenizer import TextTokenizer

ToolChoice = str | Mapping[str, Any]


class ToolUse:
    """The use of tools in one call.

    schemas  of the tools, as templates take them; none where none may be called
    family   the parser of the model's calls; None where no call is to be found
    several  whether an answer may have several calls
    """

    def __init__(
        self, tools: Any, choice: ToolChoice | None, several: bool, template: str, *, strict: bool
    ) -> None:
        """`strict`: whether a template whose calls cannot be read is refused; it always is where a
        call is asked for. Raises ValueError."""
        schemas = tool_schemas(tools or [])
        functions = _functions(schemas)
        wanted = _wanted(choice, functions)
        self.schemas: list[Schema] = [] if choice == "none" else schemas
        self.several = several
        self.family = parser_for(template) if self.schemas else None
        self._forced = {name: functions[name] for name in wanted}
        self._one = not several or isinstance(choice, Mapping)
        if self.schemas and self.family is None and (strict or self._forced):
            raise ValueError(
                "tools: how this model's chat template has calls written is not known, expected "
                "the form of Hermes, Qwen, SmolLM2, Llama 3 or Mistral"
            )

    def options(self, tokenizer: TextTokenizer) -> dict[str, Any]:
        """Options of `generate` with which calls come as the parser reads them."""
        if self.family is None:
            return {}
        special = [text for text in self.family.shown if _is_special(tokenizer, text)]
        found: dict[str, Any] = {"shown_special_tokens": special} if special else {}
        if self._forced:
            form = CallForm(self._forced, not self._one, tokenizer.id_of)
            try:
                found["grammar"] = self.family.grammar(form)
            except RecursionError:
                raise ValueError("tools: parameters are nested too deeply") from None
        return found

    def answer(self) -> ToolAnswer:
        """Reads an answer, piece by piece."""
        return ToolAnswer(None if self.family is None else self.family(), self.several)

    def read(self, made: Generation) -> Generation:
        """A text with the calls that are in it."""
        if self.family is None:
            return made
        found = self.answer()
        content = content_of(found.push(made.text, ended=True))
        calls = [call.message(call.arguments) for call in found.calls]
        read = replace(made, content=content, tool_calls=calls)
        ended = calls and made.finish_reason == "stop"
        return replace(read, finish_reason="tool_calls") if ended else read


class NamedCall(NamedTuple):
    """A call with the id by which its result will name it."""

    id: str
    name: str
    arguments: dict[str, Any]

    def message(self, arguments: Any) -> dict[str, Any]:
        """The call in the form of messages."""
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}

    @property
    def written(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)


def content_of(parts: Sequence[str | NamedCall]) -> str:
    """The text outside of calls."""
    return "".join(part for part in parts if isinstance(part, str))


class ToolAnswer:
    """One answer, and the calls that have been found in it.

    parser   None: all of the text is content
    several  whether more than one call counts
    """

    def __init__(self, parser: CallParser | None, several: bool) -> None:
        self._parser = parser
        self._several = several
        self.calls: list[NamedCall] = []

    def push(self, piece: str, *, ended: bool) -> list[str | NamedCall]:
        """Adds a piece; gives what is certain now, in order. `ended`: it is the last one."""
        if self._parser is None:
            return [piece] if piece else []
        found: list[str | NamedCall] = []
        for part in [*self._parser.push(piece), *(self._parser.finish() if ended else ())]:
            if isinstance(part, str):
                found.append(part)
            elif self._several or not self.calls:
                self.calls.append(NamedCall(self._parser.new_id(), part.name, part.arguments))
                found.append(self.calls[-1])
        return found


def _is_special(tokenizer: TextTokenizer, text: str) -> bool:
    return tokenizer.id_of(text) in tokenizer.special_ids


def _functions(schemas: Sequence[Schema]) -> dict[str, Mapping[str, Any] | None]:
    """Names, and the schemas of their parameters."""
    found: dict[str, Mapping[str, Any] | None] = {}
    for i, schema in enumerate(schemas):
        function = schema.get("function", schema)
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ValueError(
                f'tools[{i}] is {schema!r:.80}, expected {{"type": "function", "function": '
                '{"name": ..., "parameters": ...}}'
            )
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ValueError(
                f"tools[{i}]: parameters is {parameters!r:.80}, expected a JSON schema (a dict)"
            )
        found[name] = parameters
    return found


def _wanted(choice: ToolChoice | None, known: Mapping[str, Any]) -> list[str]:
    """Names of the functions one of which must be called; none where none has to be."""
    if choice is None or choice in ("none", "auto"):
        return []
    if choice == "required":
        if not known:
            raise ValueError("tool_choice is 'required', expected tools with it")
        return list(known)
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(
            f'tool_choice is {choice!r:.80}, expected "none", "auto", "required" or '
            '{"type": "function", "function": {"name": ...}}'
        )
    if name not in known:
        raise ValueError(
            f"tool_choice names {name!r:.80}, expected one of the tools: {', '.join(known)}"
        )
    return [name]
