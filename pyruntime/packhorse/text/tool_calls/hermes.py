"""Calls as Hermes and Qwen write them: <tool_call>{"name": ..., "arguments": ...}</tool_call>."""

from __future__ import annotations

from packhorse.text.tool_calls.form import CallForm, Grammar
from packhorse.text.tool_calls.parser import CallParser, Cursor, NoCallError, Reading, as_call

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesCalls(CallParser):
    """Reads a list of calls between the two, too."""

    marker = OPEN
    shown = (OPEN, CLOSE)

    def read(self, cursor: Cursor) -> Reading:
        value = yield from cursor.value()
        calls = [as_call(one) for one in (value if isinstance(value, list) else [value])]
        end = cursor.at
        try:
            yield from cursor.blank()
            closed = yield from cursor.has(CLOSE)
        except NoCallError:  # the text ended before it
            closed = False
        if not closed:
            cursor.at = end
        yield from calls

    @staticmethod
    def grammar(form: CallForm) -> Grammar:
        one = f'{form.text(OPEN)} "\\n" {form.objects("arguments")} "\\n" {form.text(CLOSE)}'
        return form.whole(form.repeated(f"({one})", "\n"))
