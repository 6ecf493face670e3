"""A process that serves: the application behind uvicorn, until a signal ends it."""

from __future__ import annotations

import logging
import math
import signal
import socket
import sys
from types import FrameType

import uvicorn

from packhorse.serve.app import create_app
from packhorse.serve.connection import Connection
from packhorse.serve.logs import log, set_up
from packhorse.serve.service import Service
from packhorse.serve.settings import Settings

_SWITCH_S = 0.0005  # Python's 5 ms are longer than most requests take
_BACKLOG = 2048
_KEEP_ALIVE_S = 75  # longer than clients keep connections that they do not use


class _Server(uvicorn.Server):
    """Loads the models before it listens, so that errors reach the caller as they are."""

    def __init__(self, config: uvicorn.Config, service: Service, address: str) -> None:
        super().__init__(config)
        self._service = service
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.start()
        await super().startup(sockets=sockets)
        models = [model.name for model in self._service.registry.models()]
        log(logging.INFO, "serving", address=self._address, models=models)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.stopping = True
        log(logging.INFO, "stopping", signal=signal.Signals(sig).name)
        super().handle_exit(sig, frame)


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, and then until what runs has finished, within
    `shutdown_timeout_s`. Raises as `TextModel.load`; OSError where the address is not free."""
    set_up(settings.log_level, settings.log_format)
    sys.setswitchinterval(_SWITCH_S)
    app = create_app(settings)
    config = uvicorn.Config(
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
    sockets = None if settings.uds else [_listen(settings.host, settings.port)]
    server = _Server(config, app.state.service, _address(settings, sockets))
    # uvicorn raises the signal that ended it again, when it has put these handlers back.
    before = {
        one: signal.signal(one, lambda _number, _frame: None)
        for one in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        server.run(sockets=sockets)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for open_socket in sockets or ():
            open_socket.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises OSError naming the address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(f"cannot listen at {host} port {port}: {error}") from None


def _address(settings: Settings, sockets: list[socket.socket] | None) -> str:
    if not sockets:
        return f"unix:{settings.uds}"
    host, port = sockets[0].getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
