"""Calls as Mistral's models write them: [TOOL_CALLS][{"name": ..., "arguments": ...}], and newer
ones [TOOL_CALLS]name[ARGS]{...}."""

from __future__ import annotations

import re
import string

from packhorse.text.tool_calls.form import CallForm, Grammar
from packhorse.text.tool_calls.parser import (
    CallParser,
    Cursor,
    NoCallError,
    Reading,
    ToolCall,
    as_call,
)

_NAME = re.compile(r"[^\s\[\]{}]{0,256}")
_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralCalls(CallParser):
    """Reads both forms, and grammars have the older one."""

    marker = _CALLS
    shown = (_CALLS, _ARGS, _ID)

    def read(self, cursor: Cursor) -> Reading:
        if (yield from cursor.blank()) == "[":
            value = yield from cursor.value()
            yield from [as_call(one) for one in value]
            return
        name = yield from cursor.matching(_NAME)
        if not name:
            raise NoCallError
        if (yield from cursor.has(_ID)):
            yield from cursor.matching(_NAME)
        yield from cursor.has(_ARGS)
        arguments = yield from cursor.value()
        if not isinstance(arguments, dict):
            raise NoCallError
        yield ToolCall(name, arguments)

    @staticmethod
    def new_id() -> str:
        """Nine letters and digits: templates of this family refuse others."""
        import secrets

        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    @staticmethod
    def grammar(form: CallForm) -> Grammar:
        calls = form.repeated(form.objects("arguments"), ", ")
        return form.whole(f'{form.text(_CALLS)} "[" {calls} "]"')


class NewMistralCalls(MistralCalls):
    """Grammars have the newer form."""

    @staticmethod
    def grammar(form: CallForm) -> Grammar:
        return form.whole(form.repeated(f"({form.text(_CALLS)} {form.named(_ARGS)})", ""))
