"""Answers that come piece by piece: server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from packhorse.serve.http.exchange import Exchange, Send
from packhorse.serve.http.json_parts import to_json

DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One event of JSON."""
    return b"data: " + to_json(content) + b"\n\n"


class EventStream:
    """A response of events. `end` is called when it has been sent, or could not be."""

    status = 200

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], object]) -> None:
        self._events = events
        self._end = end

    async def send(self, exchange: Exchange, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            exchange.id_header,
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in self._events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._end()
