"""Connections over TLS, which count, and have a clock, before both sides have agreed on keys."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from uvloop import loop as uvloop_loop

from packhorse.serve.http.connection import Connection

_LATER_S = 86_400.0  # uvloop's own limits come later than the clock of the connection
_SSLProtocol: Any = uvloop_loop.SSLProtocol  # type: ignore[attr-defined]


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """The server's side of TLS, of files in PEM format. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


class TlsSocket(_SSLProtocol):  # type: ignore[misc]
    """The layer between a socket and its connection. uvloop makes one, too, for a server that is
    given a context, but has nobody see it before keys are agreed on."""

    def __init__(self, connection: Connection, context: ssl.SSLContext) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            connection,
            context,
            None,
            server_side=True,
            ssl_handshake_timeout=_LATER_S,
            ssl_shutdown_timeout=_LATER_S,
        )
        self._connection = connection

    def connection_made(self, transport: Any) -> None:
        self._connection.accept(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.forget()
        super().connection_lost(exc)
