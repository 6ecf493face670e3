"""A process that serves: the application behind uvicorn, until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from packhorse.serve.app import create_app
from packhorse.serve.http.connection import Connection
from packhorse.serve.http.connections import Connections
from packhorse.serve.http.service import Service
from packhorse.serve.http.sites import is_loopback
from packhorse.serve.http.tls import TlsSocket, server_context
from packhorse.serve.models.memory import keep_freed, keep_images_whole, share_arenas
from packhorse.serve.observability.logs import log, to_stderr
from packhorse.serve.settings import Settings

_SWITCH_S = 0.0005  # Python's 5 ms are longer than most requests take
_BACKLOG = 2048
_YOUNG = 20_000  # objects that are made, less those freed, until Python looks for circles of them
_LOOK_S = 0.05  # seconds between two looks whether all requests of a server that ends have ended
_END_S = 1.0  # for requests that were given up
_EXIT_S = 3.0  # for threads of models, when all requests have ended


class Server(uvicorn.Server):
    """The application of some settings behind uvicorn. It loads the models before it listens, so
    that errors reach who runs it as they are, and binds its address when it is made.

    started  is called when the models are loaded
    address  where it listens, such as "http://127.0.0.1:8000"

    Raises OSError where the address is not free.
    """

    def __init__(self, settings: Settings, started: Callable[[], object] | None = None) -> None:
        self._call_started = started
        self._ended_by: str | None = None  # a signal
        app = create_app(settings)
        self.service: Service = app.state.service
        if settings.uds is None:
            self.service.sites.listen_at(settings.host)
        self._sockets = [] if settings.uds else [_bind(settings.host, settings.port)]
        self.address = _address(settings, self._sockets)
        self.connections = Connections(settings, self.service.metrics)
        make = partial(Connection, self.connections)
        if settings.ssl_certfile is not None and settings.ssl_keyfile is not None:
            context = server_context(settings.ssl_certfile, settings.ssl_keyfile)
            make = partial(_over_tls, make, context)
        super().__init__(
            uvicorn.Config(
                app,
                uds=settings.uds,
                loop="uvloop",
                http=cast("Any", make),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=True,
                forwarded_allow_ips=settings.forwarded_allow_ips,
                root_path=settings.root_path,
                backlog=_BACKLOG,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.service.start()
        self.connections.count_descriptors()
        if self._call_started is not None:
            self._call_started()
        try:
            await super().startup(sockets=sockets)
        except OSError as error:  # another one listens by now
            await self.lifespan.shutdown()
            raise OSError(f"cannot listen at {self.address}: {error}") from None
        settings = self.service.settings
        if settings.uds is None and not settings.api_key and not is_loopback(settings.host):
            log(
                logging.WARNING,
                "whoever reaches this address may use the models: no API key is set (--api-key)",
                host=settings.host,
            )
        log(
            logging.INFO,
            "serving",
            models=[model.name for model in self.service.registry.models()],
            address=self.address,
            page=self._page(),
        )

    def _page(self) -> str | None:
        """Address of the page for a browser of this machine; None: there is none."""
        settings = self.service.settings
        if not settings.page or settings.uds is not None:
            return None
        scheme, _, place = self.address.partition("://")
        host, _, port = place.rpartition(":")
        everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
        return f"{scheme}://{everywhere.get(host, host)}:{port}/"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Called wherever the main thread is, maybe amid a line of the log: it must not write one.
        self.service.stopping = True
        self._ended_by = signal.Signals(sig).name
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what runs within `shutdown_timeout_s`, and then whatever still runs."""
        seconds = self.service.settings.shutdown_timeout_s
        if self._ended_by is not None:
            log(logging.INFO, "stopping", signal=self._ended_by)
            _exit_after(seconds + _END_S + _EXIT_S)
        self.service.stopping = True
        for one in (*self.servers, *(sockets or ())):
            one.close()
        self.connections.shutdown()
        state, until = self.server_state, time.monotonic() + seconds
        while (self.connections or state.tasks) and not self.force_exit:
            if time.monotonic() >= until:
                given_up = len(state.tasks)
                log(logging.WARNING, "the time to stop is over", requests_given_up=given_up)
                break
            await asyncio.sleep(min(_LOOK_S, seconds))
        self.connections.abort()
        if state.tasks:
            _, running = await asyncio.wait(state.tasks, timeout=_END_S)
            for task in running:
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    def serve_until_told(self) -> None:
        """Serves until `should_exit` is set or, on the main thread, a signal comes; and then until
        what runs has finished, within `shutdown_timeout_s`. Raises as `TextModel.load`."""
        try:
            self.run(sockets=self._sockets or None)
        finally:
            for one in self._sockets:
                one.close()


def _over_tls(make: Callable[..., Connection], context: ssl.SSLContext, **given: Any) -> Any:
    return TlsSocket(make(**given), context)


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, and then until what runs has finished, within
    `shutdown_timeout_s`. Raises as `TextModel.load`; OSError where the address is not free."""
    with to_stderr(settings.log_level, settings.log_format):
        _run(settings)


def _run(settings: Settings) -> None:
    sys.setswitchinterval(_SWITCH_S)
    share_arenas()
    keep_freed()
    keep_images_whole()
    # The threads of the package tokenizers cost a text more than they save; ours tokenize at once.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    server = Server(settings, _calm_collector)
    # uvicorn raises the signal that ended it again, when it has put these handlers back.
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {one: signal.signal(one, lambda _number, _frame: None) for one in signals}
    try:
        server.serve_until_told()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _calm_collector() -> None:
    """Exempts all objects so far from Python's garbage collector, which need not look through them
    again and again. Requests leave hardly any reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


def _exit_after(seconds: float) -> None:
    """Ends the process when so much time has gone by, whatever its threads do."""
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()


def _bind(host: str, port: int) -> socket.socket:
    """A socket that has the address, and listens to nobody yet. Raises OSError naming the
    address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.bind(address)
        except OSError:
            found.close()
            raise
        return found
    except OSError as error:
        raise OSError(f"cannot listen at {host} port {port}: {error}") from None


def _address(settings: Settings, sockets: list[socket.socket]) -> str:
    if not sockets:
        return f"unix:{settings.uds}"
    host, port = sockets[0].getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
