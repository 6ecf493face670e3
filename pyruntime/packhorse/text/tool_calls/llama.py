"""Calls as Llama 3 writes them: {"name": ..., "parameters": ...}, several with ";" between them."""

from __future__ import annotations

from packhorse.text.generation.token_decoding import held_back
from packhorse.text.tool_calls.form import CallForm, Grammar
from packhorse.text.tool_calls.parser import CallParser, Cursor, NoCallError, Reading, as_call


class LlamaCalls(CallParser):
    """A call begins with the text, or after <|python_tag|>."""

    marker = "<|python_tag|>"
    shown = (marker,)

    def __init__(self) -> None:
        super().__init__()
        self._at_start = True

    def begin(self, text: str, ended: bool) -> tuple[int, int | None]:
        if self._at_start:
            blank = len(text) - len(text.lstrip())
            rest = text[blank:]
            if not ended and held_back(rest, self.marker) == len(rest):
                return blank, None  # it may still begin with a call
            self._at_start = False
            if rest.startswith("{"):
                return blank, 0
        return super().begin(text, ended)

    def read(self, cursor: Cursor) -> Reading:
        while True:
            value = yield from cursor.value()
            if "parameters" not in value and "arguments" not in value:
                raise NoCallError
            yield as_call(value, names=("parameters", "arguments"))
            end = cursor.at
            if (yield from cursor.blank()) == ";":
                cursor.at += 1
            elif cursor.text[cursor.at] != "{":
                cursor.at = end
                return

    @staticmethod
    def grammar(form: CallForm) -> Grammar:
        return form.whole(form.repeated(form.objects("parameters"), "; "))
