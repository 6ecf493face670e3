"""Calls as SmolLM2 writes them: <tool_call>[{"name": ..., "arguments": ...}, ...]</tool_call>."""

from __future__ import annotations

from packhorse.text.tool_calls.form import CallForm, Grammar
from packhorse.text.tool_calls.hermes import CLOSE, OPEN, HermesCalls


class SmolCalls(HermesCalls):
    """One list has all calls; an empty one is none."""

    @staticmethod
    def grammar(form: CallForm) -> Grammar:
        calls = form.repeated(form.objects("arguments"), ", ")
        return form.whole(f'{form.text(OPEN)} "[" {calls} "]" {form.text(CLOSE)}')
