"""A connection of uvicorn that does not wait forever, nor read headers without end, and by which a
request and its answer take fewer steps than by ASGI alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from packhorse.serve.exchange import WIRE, Headers

_MOST_HEADER_BYTES = 65_536
_HEADERS_WITHIN_S = 20.0  # from the connection, or the first byte of a request, to all its headers
_LINGER_S = 1.0  # for what a client still sends that has been refused


class Wire:
    """The connection of one request, which its scope has as an extension of ASGI (`WIRE`)."""

    __slots__ = ("_connection", "_cycle")

    def __init__(self, connection: Connection, cycle: Any) -> None:
        self._connection = connection
        self._cycle = cycle

    def when_lost(self, call: Callable[[], object] | None) -> None:
        """Has something called when the connection is lost before the answer; None: nothing."""
        if self._cycle.disconnected and call is not None:
            call()
        else:
            self._connection.when_lost = call

    def body(self) -> bytes | None:
        """The body of the request, if all of it has come; None: it is to be received."""
        cycle = self._cycle
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        self._connection.flow.resume_reading()  # which a large body has paused
        return body

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Sends a whole response by one write; `headers` are in lower case, and have the length of
        the body. False, and nothing is sent, where what was sent before has not gone out yet."""
        cycle, connection = self._cycle, self._connection
        if cycle.disconnected:
            return True
        if connection.flow.write_paused:
            return False
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        if cycle.scope["method"] != "HEAD":
            parts.append(body)
        connection.transport.write(b"".join(parts))
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            connection.transport.close()
        cycle.on_response()
        return True


class Connection(HttpToolsProtocol):
    """Closes a connection whose headers do not come in time, or which is idle for too long, and
    refuses headers that are too long (431)."""

    when_lost: Callable[[], object] | None = None
    _idle_since: float | None = None  # of the loop's time; None: a request is on its way
    _idle_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _refused = False
    _in_headers = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._idle_since = None
        before = self._header_bytes
        super().data_received(data)
        if self._in_headers:
            if self._timer is None:
                self._expect_headers()
            # Headers that are not complete yet: what came since they began counts.
            self._header_bytes = before + len(data)
            if self._header_bytes > _MOST_HEADER_BYTES and not self.transport.is_closing():
                self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._stop_timer()
        scope: Any = self.scope
        super().on_headers_complete()  # makes a task, which begins later
        scope["extensions"] = {WIRE: Wire(self, self.cycle)}

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        # One timer for all requests of the connection, in place of one after each.
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._end_idle)

    def _end_idle(self) -> None:
        since, now = self._idle_since, self.loop.time()
        left = self.timeout_keep_alive - (0.0 if since is None else now - since)
        if left <= 0:
            self._idle_timer = None
            self._give_up()
        else:
            self._idle_timer = self.loop.call_later(left, self._end_idle)

    def _expect_headers(self) -> None:
        self._timer = self.loop.call_later(_HEADERS_WITHIN_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse_headers(self) -> None:
        message = b'{"error":"the headers are too long","error_type":"Validation"}'
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
            b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(message), message)
        )
        # Closed at once, with data unread, the connection would be reset, and the answer lost.
        self._refused = True
        self.transport.write_eof()
        self._stop_timer()
        self._timer = self.loop.call_later(_LINGER_S, self._give_up)
