"""Calls of tools in generated text, read as the text comes.

Every family of models writes calls in a form of its own: a class each, in a file of its own.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, ClassVar, NamedTuple

from packhorse.text.generation.token_decoding import held_back
from packhorse.text.tool_calls.form import CallForm, Grammar


class ToolCall(NamedTuple):
    """A call that a model wrote."""

    name: str
    arguments: dict[str, Any]


class NoCallError(Exception):
    """A text that is no call after all."""


Part = str | ToolCall  # text outside of calls, or a call that is complete
Reading = Generator[ToolCall | None, None, None]  # calls, and None where more text is needed
Waiting = Generator[None, None, Any]


class Cursor:
    """A place in a text that grows.

    begin  where it was at first
    done   the end of what was read as calls
    ended  whether no more text comes
    """

    def __init__(self, begin: int) -> None:
        self.text, self.begin, self.at, self.done = "", begin, begin, 0
        self.ended = False

    def more(self) -> Waiting:
        """Waits for more text. Raises NoCallError where none comes."""
        size = len(self.text)
        while len(self.text) == size:
            if self.ended:
                raise NoCallError
            yield

    def blank(self) -> Waiting:
        """Passes white space; gives the first character after it."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            yield from self.more()

    def has(self, literal: str) -> Waiting:
        """Passes a literal, where it comes next; says whether it does."""
        while not self.text.startswith(literal, self.at):
            if not literal.startswith(self.text[self.at :]):
                return False
            yield from self.more()
        self.at += len(literal)
        return True

    def matching(self, pattern: re.Pattern[str]) -> Waiting:
        """Passes what a pattern matches, when another character follows; gives it."""
        while (found := pattern.match(self.text, self.at)) is None or found.end() == len(self.text):
            yield from self.more()
        self.at = found.end()
        return found[0]

    def value(self) -> Waiting:
        """An object or list of JSON. Raises NoCallError where it is none."""
        if (yield from self.blank()) not in "{[":
            raise NoCallError
        begin, depth, inside = self.at, 0, False  # inside a string
        while True:
            found = (_IN_STRING if inside else _OUTSIDE).search(self.text, self.at)
            if found is None or (found[0] == "\\" and found.end() == len(self.text)):
                self.at = len(self.text) if found is None else found.start()
                yield from self.more()
                continue
            self.at = found.end()
            if found[0] == "\\":
                self.at += 1
            elif found[0] == '"':
                inside = not inside
            elif found[0] not in "{}[]":
                raise NoCallError
            else:
                depth += 1 if found[0] in "{[" else -1
                if depth == 0:
                    break
        try:
            return json.loads(self.text[begin : self.at], strict=False)
        except (ValueError, RecursionError):
            raise NoCallError from None


# Outside of strings the first sign that is none of white space, numbers, true, false, null: what is
# no JSON ends there, so that text with many beginnings of calls is not read again from each one.
_OUTSIDE, _IN_STRING = re.compile(r"[^\s:,.+\-0-9truefalsnE]"), re.compile(r'["\\]')


class CallParser(ABC):
    """Takes calls out of one text.

    Text that looks like a call and is none stays in the content; white space around calls does not.

    marker  what stands before a call
    shown   special tokens of the tokenizer that are a part of the form
    """

    marker: ClassVar[str]
    shown: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._text = ""  # text that is not yet known to be content or a call
        self._blank = ""  # white space that the content begins with, or goes on with after a call
        self._in_content = False  # whether more than white space has come since the last call
        self._found_any = False
        self._reading: tuple[Cursor, Reading] | None = None  # the call that has begun

    @abstractmethod
    def read(self, cursor: Cursor) -> Reading:
        """Reads a call, or several, after the marker. Raises NoCallError for what is none."""

    @staticmethod
    @abstractmethod
    def grammar(form: CallForm) -> Grammar:
        """The grammar of texts that are calls."""

    @staticmethod
    def new_id() -> str:
        import secrets

        return f"call_{secrets.token_hex(12)}"

    def push(self, piece: str) -> list[Part]:
        """Adds a piece of text; gives what is certain now, in order."""
        self._text += piece
        return self._go(ended=False)

    def finish(self) -> list[Part]:
        """The rest, when nothing comes any more."""
        found = self._go(ended=True)
        return found if self._found_any or not self._blank else [*found, self._blank]

    def begin(self, text: str, ended: bool) -> tuple[int, int | None]:
        """(characters that are content, those of the marker after them); the latter is None where
        no call has begun."""
        where = text.find(self.marker)
        if where >= 0:
            return where, len(self.marker)
        return len(text) - (0 if ended else held_back(text, self.marker)), None

    def _go(self, ended: bool) -> list[Part]:
        parts: list[Part] = []
        while True:
            if self._reading is None:
                size, begun = self.begin(self._text, ended)
                parts += self._outside(self._text[:size])
                self._text = self._text[size:]
                if begun is None:
                    return parts
                cursor = Cursor(begun)
                self._reading = cursor, self.read(cursor)
            cursor, reading = self._reading
            cursor.text, cursor.ended = self._text, ended
            try:
                for call in reading:
                    if call is None:
                        return parts
                    parts.append(call)
                    cursor.done = cursor.at
                    self._found_any, self._in_content, self._blank = True, False, ""
                cursor.done = cursor.at
            except NoCallError:
                if not cursor.done:  # nothing of it was a call: its marker is content
                    cursor.done = cursor.begin
                    parts += self._outside(self._text[: cursor.done])
            self._text = self._text[cursor.done :]
            self._reading = None

    def _outside(self, text: str) -> list[str]:
        """Content, without white space of which it is not known whether it is any."""
        if not self._in_content:
            kept = text.lstrip()
            self._blank += text[: len(text) - len(kept)]
            if not kept:
                return []
            text, self._blank, self._in_content = self._blank + kept, "", True
        return [text] if text else []


def as_call(value: Any, *, names: Sequence[str] = ("arguments", "parameters")) -> ToolCall:
    """A call of JSON, {"name": ..., "arguments": ...}. Raises NoCallError for another object;
    `names`: those that arguments go by."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise NoCallError
    found = next((value[name] for name in names if name in value), None)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise NoCallError from None
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise NoCallError
    return ToolCall(value["name"], found)
