"""Conversations to prompts, by the chat template that a model comes with.

Templates are programs of Jinja, written for transformers. They run in its sandbox, with what
`apply_chat_template` of transformers gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from packhorse.text.foreign_errors import began_in
from packhorse.text.generation.message_content import with_contents_for
from packhorse.text.generation.template_uses import TemplateUses
from packhorse.text.generation.tool_schema import Tool, tool_schemas
from packhorse.text.giving_up import GaveUpError

if TYPE_CHECKING:
    from jinja2 import Template

    from packhorse.text.generation.template_sandbox import LimitedEnvironment

Message = Mapping[str, Any]
_MOST_MESSAGE = 1000  # characters of an error, in which the template may write what it likes
# Packages in whose code the steps of a template end; a handler of a signal is of none of them.
_OF_TEMPLATES = ("jinja2", "markupsafe", "json", "string", "random", "packhorse")
_LAST = "\ufdd0end of the last message\ufdd0"  # U+FDD0 is in no text


def _environment() -> LimitedEnvironment:
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension
    except ModuleNotFoundError:
        from packhorse_weights.extras import missing_package

        raise missing_package("text", "jinja2", "a chat template") from None
    from packhorse.text.generation.template_sandbox import LimitedEnvironment

    class Generation(Extension):
        """{% generation %} marks what the model wrote, for training; what is in it stays."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = LimitedEnvironment(Generation)
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    made.limit_filters()
    return made


class ChatTemplates:
    """The chat templates of one model, by name; most have one, "default".

    special_tokens  what templates may write, such as "bos_token"
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, Any]) -> None:
        self._templates = templates
        self._special_tokens = special_tokens
        self._environment: LimitedEnvironment | None = None
        self._compiled: dict[str, Template] = {}
        self._known_uses: dict[str, TemplateUses] = {}

    def render(
        self,
        messages: Sequence[Message],
        *,
        chat_template: str | None = None,
        tools: Sequence[Tool] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation. Arguments as of `TextModel.chat`. Raises ValueError."""
        check_messages(messages)
        template = self._choose(chat_template, tools)
        uses = self._uses(template)
        _refuse_unread(uses, tools=tools, documents=documents)
        messages = with_contents_for(uses, messages)
        last = messages[-1].get("content")
        if continue_final_message:
            if add_generation_prompt:
                raise ValueError(
                    "continue_final_message goes with add_generation_prompt=False: the last "
                    "message is continued, or a new one begun"
                )
            messages = _marked(messages)
        text = self._render(
            template,
            {
                **self._special_tokens,
                "messages": messages,
                "tools": None if tools is None else tool_schemas(tools),
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
                **(template_args or {}),
            },
        )
        return _up_to_mark(text, last) if continue_final_message else text

    def template_for(self, asked: str | None, tools: object) -> str:
        """The text of the template that a conversation with these tools is written by. Raises
        ValueError, also for one that has no place for tools."""
        template = self._choose(asked, tools)
        _refuse_unread(self._uses(template), tools=tools)
        return template

    def _uses(self, template: str) -> TemplateUses:
        """Facts about a template; the model's own are looked at once."""
        found = self._known_uses.get(template)
        if found is None:
            environment = self._limits()
            from jinja2 import TemplateError

            _check_size(template)
            try:
                found = TemplateUses(environment, template)
            except (TemplateError, RecursionError) as error:
                raise ValueError(f"chat template: {error}") from error
            if template in self._templates.values():
                self._known_uses[template] = found
        return found

    def _choose(self, asked: str | None, tools: object) -> str:
        """The text of a template: of this name, or `asked` itself, or the model's own."""
        if asked is not None:
            several = len(self._templates) > 1
            if several and asked not in self._templates and "{" not in asked:
                raise ValueError(
                    f"chat_template {asked!r:.80} is neither a template nor the name of one of "
                    f"this model's: {', '.join(self._templates)}"
                )
            return self._templates.get(asked, asked)
        if tools is not None and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        known = ", ".join(self._templates)
        raise ValueError(
            f"this model has several chat templates and no default one: {known}; name one by "
            "chat_template="
            if known
            else "this model has no chat template: give one by chat_template=, or use generate"
        )

    def _render(self, template: str, values: Mapping[str, Any]) -> str:
        environment = self._limits()
        try:
            with environment.budget():
                return self._compile(environment, template).render(**values)
        except (GaveUpError, MemoryError):
            raise
        except Exception as error:  # raised by Jinja or by the template's own steps
            if not isinstance(error, RecursionError) and not began_in(error, *_OF_TEMPLATES):
                raise
            raise ValueError(f"chat template: {str(error)[:_MOST_MESSAGE]}") from error

    def _limits(self) -> LimitedEnvironment:
        if self._environment is None:
            self._environment = _environment()
        return self._environment

    def _compile(self, environment: LimitedEnvironment, template: str) -> Template:
        """A template; the model's own are compiled once, and those that come with a call are not
        kept."""
        compiled = self._compiled.get(template)
        if compiled is None:
            compiled = environment.from_string(template)
            if template in self._templates.values():
                self._compiled[template] = compiled
        return compiled


def _check_size(template: str) -> None:
    """Raises ValueError for a template that is too long to be read."""
    from packhorse.text.generation.template_sandbox import MOST_SOURCE

    if len(template) > MOST_SOURCE:
        raise ValueError(
            f"chat template: it has {len(template)} characters, at most {MOST_SOURCE} are taken"
        )


def _refuse_unread(uses: TemplateUses, **given: object) -> None:
    """Raises ValueError for what is given and a template would leave out."""
    for name, value in given.items():
        if value and not uses.reads(name):
            raise ValueError(f"{name}: this model's chat template has no place for them")


def check_messages(messages: Any) -> None:
    """Raises ValueError for what is no conversation."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(
            f'messages is {messages!r:.80}, expected a list of {{"role": ..., "content": ...}}'
        )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(
                f'messages[{i}] is {message!r:.80}, expected {{"role": ..., "content": ...}}'
            )


def _marked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with a mark at the end of the last one's text."""
    found = [dict(deepcopy(message)) for message in messages]
    content = found[-1].get("content")
    if isinstance(content, str):
        found[-1]["content"] = f"{content}{_LAST} "
        return found
    for part in reversed(content) if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            part["text"] += f"{_LAST} "
            return found
    raise ValueError(
        f"continue_final_message: the last message's content is {content!r:.80}, expected text"
    )


def _up_to_mark(text: str, last: Any) -> str:
    """The prompt up to the end of the last message, `last`, if all of it is there."""
    if not isinstance(last, str):
        last = next(part["text"] for part in reversed(last) if "text" in part)
    where = text.rfind(_LAST)
    if where < 0 or not text[:where].rstrip().endswith(last.strip()):
        raise ValueError(
            "continue_final_message: this chat template does not write the last message as it is: "
            f"{last!r:.80}"
        )
    before, trimmed = text[:where], text[where + len(_LAST) :][:1] != " "
    return before.rstrip() if trimmed else before
