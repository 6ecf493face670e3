"""A connection of uvicorn on which nothing lasts for ever, whatever its client does, and by which a
request and its answer take fewer steps than by ASGI alone.

One timer of the connection looks at its clocks: that of the request, from its first byte to the
last one of its body; that of the answer, which the client has to take; and that of being idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from packhorse.serve.errors import ServeError
from packhorse.serve.http.connections import Connections
from packhorse.serve.http.exchange import HTTP_CONNECTION, SURPLUS, Headers
from packhorse.serve.http.json_parts import to_json

_MOST_UNUSED_BYTES = 65_536  # limit of headers, and of the bytes between the parts of a body
# Bytes that are parsed at once, unless they all belong to the body of the request: the fewest
# requests that are begun ahead.
_SLICE = 4096
_MOST_HELD_BYTES = 65_536  # limit of requests that come while one is being answered
_LEAST_TAKEN_BYTES = 1_048_576  # a client reads at least this much of an answer in each `write_s`
_LINGER_S = 1.0  # for what a client still sends that has been refused
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SURPLUS_S = 2.0  # for the request of a connection that is one too many


class _Collected:
    """Parts of the body of a cycle that have come. error: why no more are taken."""

    __slots__ = ("_check", "_size", "cycle", "error", "parts")

    def __init__(self, cycle: Any, check: Callable[[int], None]) -> None:
        self.cycle = cycle
        self._check = check
        self._size = 0
        self.parts: list[bytes] = []
        self.error: ServeError | None = None

    def add(self, part: bytes) -> None:
        self._size += len(part)
        try:
            self._check(self._size)
        except ServeError as error:
            self.error = error
        else:
            self.parts.append(part)


class HttpConnection:
    """The connection of one request, which its scope has as an extension of ASGI
    (`HTTP_CONNECTION`).

    began  when the first byte of the request came, of `time.monotonic`
    """

    __slots__ = ("_connection", "_cycle", "began")

    def __init__(self, connection: Connection, cycle: Any, began: float) -> None:
        self._connection = connection
        self._cycle = cycle
        self.began = began

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
        self._connection.flow.resume_reading()  # a large body has paused it
        return body

    async def rest_of_body(self, check: Callable[[int], None]) -> bytes | None:
        """The body of the request, when all of it has come; None: the client has gone away.

        check  is told how many bytes have come, and raises ServeError where they are too many
        """
        cycle, connection = self._cycle, self._connection
        if cycle.waiting_for_100_continue and not cycle.disconnected:
            connection.transport.write(_CONTINUE)
            cycle.waiting_for_100_continue = False
        first, cycle.body = bytes(cycle.body), bytearray()
        connection.collected = found = _Collected(cycle, check)
        try:
            found.add(first)
            connection.flow.resume_reading()
            while cycle.more_body and not cycle.disconnected and found.error is None:
                cycle.message_event.clear()
                await cycle.message_event.wait()
        finally:
            connection.collected = None
        if found.error is not None:
            raise found.error
        cycle.message_event.clear()
        return None if cycle.disconnected else b"".join(found.parts)

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
        if not cycle.keep_alive or cycle.more_body:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        if cycle.scope["method"] != "HEAD":
            parts.append(body)
        connection.transport.write(b"".join(parts))
        cycle.waiting_for_100_continue = False
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive and not cycle.more_body:
            connection.transport.close()
        cycle.on_response()
        return True


class CountingTransport:
    """A transport that knows how many bytes were written to it. When it is over, it takes none."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written = 0
        self.over = False

    def write(self, data: bytes) -> None:
        if not self.over:
            self.written += len(data)
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """Closes a connection whose request does not come, whose answer is not taken, or which is idle
    for too long, and refuses what is no HTTP (400) and headers that are too long (431).

    A request is parsed when the one before it has been answered; until then a few bytes of it are
    kept, and the rest is left to the client.
    """

    transport: Any
    when_lost: Callable[[], object] | None = None
    collected: _Collected | None = None  # takes the parts of the body, of which nobody is told
    _running: Any = None  # the cycle of the request that is being answered
    _socket: Any = None  # the transport below TLS, or `transport`
    _surplus = False
    _in_headers = False
    _refused = False  # if true, data is thrown away
    _unused_bytes = 0
    _body_left = 0  # bytes of the body that have not come, if its length was said
    _began = 0.0  # the request: its first byte
    _due: float | None = None  # until when the client has to do what comes next; None: our turn
    _taken: tuple[float, int] | None = None  # when so much of what was written was taken
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, connections: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._all = connections
        self._held = bytearray()

    def accept(self, transport: Any) -> None:
        """Begins its clock; over TLS before there is anything to read."""
        self._socket = transport
        self.transport = CountingTransport(transport)
        self._surplus = not self._all.add(self)
        self._all.rest(self)
        receive_s = self._all.receive_s
        self._due = time.monotonic() + (min(_SURPLUS_S, receive_s) if self._surplus else receive_s)
        self._timer = self.loop.call_later(self._all.tick_s, self._tick)

    def connection_made(self, transport: Any) -> None:
        if self._timer is None:
            self.accept(transport)
        super().connection_made(CountingTransport(transport))  # type: ignore[arg-type]

    def forget(self) -> None:
        """The socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._all.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        self.transport.over = True
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        if self.when_lost is not None:
            self.when_lost()

    def abort(self) -> None:
        """Ends it at once; what has not been sent is lost."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Ends it when what has come of it has been answered."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        elif self._pending():
            self._close()
        else:
            self.abort()  # a client of TLS need not say goodbye

    # --- what comes

    def data_received(self, data: bytes) -> None:
        begin = end = 0
        while (begin := end) < len(data):
            if self._refused:
                return
            if self._answers:
                self._held += data[begin:]
                if len(self._held) > _MOST_HELD_BYTES:
                    self.flow.pause_reading()
                return
            end = min(len(data), begin + max(_SLICE, self._body_left))
            self._parse(data[begin:end])

    @property
    def _answers(self) -> bool:
        """True where a request has come as a whole that is not answered yet."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _parse(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to a protocol that is not served: the request is answered as it is
        except httptools.HttpParserError:
            self._refuse(400, "this is not a request of HTTP/1.1")
            return
        if self._unused_bytes > _MOST_UNUSED_BYTES:
            self._refuse(431, "the headers are too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._all.wake(self)
        self._began = time.monotonic()
        if not self._surplus:
            self._due = self._began + self._all.receive_s

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # trailers after a body are not looked at
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._unused_bytes = 0
        scope: Any = self.scope
        self._body_left = _length_of_body(scope["headers"])
        super().on_headers_complete()  # makes a task, which begins later
        scope["extensions"] = {HTTP_CONNECTION: HttpConnection(self, self.cycle, self._began)}
        if self._surplus:
            scope[SURPLUS] = True
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        self._body_left -= len(body)
        found = self.collected
        if found is None or found.cycle is not self.cycle or found.error is not None:
            super().on_body(body)
            return
        found.add(body)
        if found.error is not None:
            found.cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._unused_bytes = 0
        self._body_left = 0
        self._due = None
        super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # --- what goes

    def on_response_complete(self) -> None:
        cycle = self.cycle
        if cycle.response_complete and cycle.more_body:
            self._linger()
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        if not self._in_headers and not self._refused:
            self._due = time.monotonic() + self._all.keep_alive_s
            self._all.rest(self)
        held, self._held = bytes(self._held), bytearray()
        self.data_received(held)

    def _refuse(self, status: int, message: str) -> None:
        """Answers what is not a request that could be."""
        self._all.refused(str(status))
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = to_json({"error": message, "error_type": "Validation"})
        self.transport.write(
            b"%bcontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (STATUS_LINE[status], len(body), body)
        )
        self._linger()
        self.transport.over = True

    def _linger(self) -> None:
        """Closes the connection when the client has had time to read the answer: closed at once,
        with data unread, it would be reset, and the answer lost."""
        if self._refused:
            return
        self._refused = True
        self._due = None
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self._close)

    # --- clocks

    def _tick(self) -> None:
        now = time.monotonic()
        self._check_answer(now)
        if self._due is not None and now >= self._due:
            self._overdue(now, self._due)
        self._timer = self.loop.call_later(self._all.tick_s, self._tick)

    def _check_answer(self, now: float) -> None:
        """Ends a connection whose client does not take what was written."""
        pending = self._pending()
        if not pending:
            self._taken = None
            if self.transport.is_closing():
                self.abort()  # over TLS, where the client does not say goodbye
            return
        taken = self.transport.written - pending
        if self._taken is None or taken - self._taken[1] >= _LEAST_TAKEN_BYTES:
            self._taken = now, taken
        elif now - self._taken[0] >= self._all.write_s:
            self._all.refused("slow_reader")
            self.abort()

    def _pending(self) -> int:
        """Bytes that the client has not taken yet, beside what the system keeps for it."""
        below: int = self._socket.get_write_buffer_size()
        return below + (self.transport.get_write_buffer_size() if self.scheme == "https" else 0)

    def _overdue(self, now: float, due: float) -> None:
        unanswered = self.cycle is not None and not self.cycle.response_complete
        if unanswered and (self.pipeline or self._in_headers):
            self._due = now + self._all.receive_s  # the client waits for an answer before it
            return
        if unanswered and now < due + _LINGER_S:
            return  # the reader of the body raises the error
        if unanswered or self._in_headers:
            self._all.refused("slow_request")
        self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def _length_of_body(headers: Headers) -> int:
    """Bytes that the header says, which the parser checks; 0 for a body in chunks."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
