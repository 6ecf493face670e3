"""A connection of uvicorn that does not wait forever, nor read headers without end."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEADER_BYTES = 65_536
_HEADERS_WITHIN_S = 20.0  # from the connection, or the first byte of a request, to all its headers
_LINGER_S = 1.0  # for what a client still sends that has been refused


class Connection(HttpToolsProtocol):
    """Closes a connection whose headers do not come in time, and refuses those too long (431)."""

    _header_bytes = 0
    _refused = False
    _in_headers = False
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        before = self._header_bytes
        super().data_received(data)
        if self._in_headers:
            # Headers that are not complete yet: what came since they began counts.
            self._header_bytes = before + len(data)
            if self._header_bytes > _MOST_HEADER_BYTES and not self.transport.is_closing():
                self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0
        if self._timer is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

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
