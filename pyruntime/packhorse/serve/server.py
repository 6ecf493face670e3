"""A process that serves: the application behind uvicorn, until a signal ends it."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from packhorse.serve.app import create_app
from packhorse.serve.connection import Connection
from packhorse.serve.logs import log, set_up
from packhorse.serve.service import Service
from packhorse.serve.settings import Settings

_SWITCH_S = 0.0005  # Python's 5 ms are longer than most requests take
_BACKLOG = 2048
_YOUNG = 20_000  # objects that are made, less those freed, until Python looks for circles of them
_KEEP_ALIVE_S = 75  # longer than clients keep connections that they do not use


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
        self._sockets = [] if settings.uds else [_listen(settings.host, settings.port)]
        self.address = _address(settings, self._sockets)
        super().__init__(
            uvicorn.Config(
                app,
                uds=settings.uds,
                loop="uvloop",
                http=Connection,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=True,
                forwarded_allow_ips=settings.forwarded_allow_ips,
                root_path=settings.root_path,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout_s),
                ssl_certfile=settings.ssl_certfile,
                ssl_keyfile=settings.ssl_keyfile,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.service.start()
        if self._call_started is not None:
            self._call_started()
        await super().startup(sockets=sockets)
        models = [model.name for model in self.service.registry.models()]
        log(logging.INFO, "serving", address=self.address, models=models)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Called wherever the main thread is, maybe amid a line of the log: it must not write one.
        self.service.stopping = True
        self._ended_by = signal.Signals(sig).name
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ended_by is not None:
            log(logging.INFO, "stopping", signal=self._ended_by)
        await super().shutdown(sockets=sockets)

    def serve_until_told(self) -> None:
        """Serves until `should_exit` is set or, on the main thread, a signal comes; and then until
        what runs has finished, within `shutdown_timeout_s`. Raises as `TextModel.load`."""
        try:
            self.run(sockets=self._sockets or None)
        finally:
            for one in self._sockets:
                one.close()


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, and then until what runs has finished, within
    `shutdown_timeout_s`. Raises as `TextModel.load`; OSError where the address is not free."""
    set_up(settings.log_level, settings.log_format)
    sys.setswitchinterval(_SWITCH_S)
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
    """What is there now stays: Python's collector of garbage need not look through it again and
    again. Requests leave hardly any circles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises OSError naming the address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(f"cannot listen at {host} port {port}: {error}") from None


def _address(settings: Settings, sockets: list[socket.socket]) -> str:
    if not sockets:
        return f"unix:{settings.uds}"
    host, port = sockets[0].getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
