"""Bodies of requests: JSON, read so that a long one does not hold up the other requests.

The package orjson reads a body in one step, in which no other thread of Python runs. That is short
for texts however long they are, but not for millions of small values: how many there are is counted
first, in steps that let other threads run. Long texts are images, mostly, of which many come at a
time. They are cut out before, without the interpreter lock, and put back as they are.
"""

from __future__ import annotations

import gc
import re
import secrets
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import orjson

from packhorse._native import image as native
from packhorse.serve.errors import ServeError

SMALL_BODY = 65_536  # bytes that take the event loop a few milliseconds, whatever stands in them
_CONTAINER = 4  # values that a list or an object counts for: it takes as long as so many numbers
_AT_ONCE = 65_536  # bytes that are looked through in one step
_TEXT = re.compile(rb'"[^"]*"')
_QUICK_BODY = 1_048_576  # bytes that are copied, but for a few, in a fraction of a millisecond
_LONG_TEXT = 16_384  # characters of a text that is cut out
_CUT = secrets.token_hex(16)  # stands where a text was, before its number; no client knows it


def read_json(body: bytes) -> Any:
    """Parses a body. Raises ServeError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ServeError("malformed", f"the body is not JSON: {error}") from None


class LongBody:
    """A body of more than `SMALL_BODY` bytes.

    most  values that it may have
    """

    def __init__(self, body: bytes, most: int) -> None:
        self._body = body
        self._most = most

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """Where its long texts lie; none where what stands around them is long, too."""
        places = native.long_texts(self._body, _LONG_TEXT)
        around = len(self._body) - sum(end - begin for begin, end in places)
        return places if around <= SMALL_BODY else []

    @property
    def is_quick(self) -> bool:
        """True where to read it takes less than to have a thread do so."""
        return len(self._body) <= _QUICK_BODY and bool(self._places)

    def read(self) -> Any:
        """Parses it. Raises ServeError also for more than `most` values."""
        if self._places:
            return _read_around(self._body, self._places, self._most)
        return _read_whole(self._body, self._most)


def _read_around(body: bytes, places: list[tuple[int, int]], most: int) -> Any:
    """Parses what stands around the texts at some places, which is short."""
    parts: list[bytes] = []
    done = 0
    for number, (begin, end) in enumerate(places):
        parts += (body[done:begin], f"{_CUT}{number}".encode())
        done = end
    try:
        found = _read_whole(b"".join((*parts, body[done:])), most)
    except ServeError as error:
        if error.kind != "malformed":
            raise
        return _read_whole(body, most)  # names the place in the body as it is
    view = memoryview(body)

    def whole(value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith(_CUT):
            return value
        begin, end = places[int(value[len(_CUT) :])]
        return str(view[begin:end], "ascii")

    found = whole(found)
    left = [found]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            inner = {whole(name): whole(value) for name, value in one.items()}
            one.clear()
            one.update(inner)
            left += one.values()
        elif isinstance(one, list):
            one[:] = map(whole, one)
            left += one
    return found


def _read_whole(body: bytes, most: int) -> Any:
    found = _values(body)
    if found > most:
        found = sum(map(_values, _between_texts(body)))
    if found > most:
        raise ServeError(
            "too_large",
            f"the body has {found} values (a list or an object counts as {_CONTAINER}), at most "
            f"{most} are taken",
        )
    collects = gc.isenabled()
    gc.disable()  # a tree that is being read is no garbage, and much of it would be looked at again
    try:
        return read_json(body)
    finally:
        if collects:
            gc.enable()


def _values(text: bytes) -> int:
    """Counts the values, if none of it is within a text."""
    return text.count(b",") + _CONTAINER * (text.count(b"[") + text.count(b"{"))


def _between_texts(body: bytes) -> Iterator[bytes]:
    """The parts of a body that stand outside of its texts."""
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # so every quote ends or begins a text
    inside = False
    for begin in range(0, len(body), _AT_ONCE):
        part = body[begin : begin + _AT_ONCE]
        if inside:
            _, quote, part = part.partition(b'"')
            if not quote:
                continue
        before, quote, _ = _TEXT.sub(b"", part).partition(b'"')
        inside = bool(quote)
        yield before
