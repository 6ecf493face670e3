"""A server that is a process of its own, and how long another client waits for it meanwhile."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from serve_room import SECONDS


@contextmanager
def serving_process(models: Mapping[str, Path], *options: str) -> Iterator[tuple[int, int]]:
    """(port, process) of `packhorse serve`, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = int(one.getsockname()[1])
    command = [sys.executable, "-m", "packhorse.cli", "serve", "--port", str(port)]
    command += [f"{name}={path}" for name, path in models.items()]
    command += ["--log-level", "error", "--threads", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while _health(port) != 200:
                if server.poll() is not None:
                    raise RuntimeError("the server did not start")
                time.sleep(0.05)
            yield port, server.pid
            server.send_signal(signal.SIGTERM)
            assert server.wait(SECONDS) == 0
        finally:
            server.kill()


def _health(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


class Prober(threading.Thread):
    """Another client, who asks for /health every few milliseconds; `waits` are seconds."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._end = threading.Event()
        self.waits: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        while not self._end.wait(0.005):
            begin = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            self.waits.append(time.perf_counter() - begin)

    def __enter__(self) -> Prober:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self.join()
