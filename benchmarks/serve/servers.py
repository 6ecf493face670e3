"""The servers that benchmarks/serve/load.py loads, each a process that stands still unless its turn
has come."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_START_S = 180.0


@dataclass(frozen=True)
class Running:
    """A server at a port of this machine.

    field  the field of a request's body that holds the texts
    """

    name: str
    pid: int
    port: int
    path: str
    field: str

    def body(self, inputs: str | Sequence[str]) -> str:
        content: dict[str, Any] = {self.field: inputs}
        return json.dumps({**content, "model": "model"} if self.field == "input" else content)

    @property
    def resident_mb(self) -> float:
        """Memory of the process, in MB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def rest(self) -> None:
        """Stands still, so that it takes nothing from the one that is measured."""
        os.kill(self.pid, signal.SIGSTOP)

    def go(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ask(self, method: str = "GET", path: str = "/health", body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            found = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self.name}: {method} {path} gave {response.status}: {found!r}")
        return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def _running(
    name: str, command: Sequence[str], port: int, path: str, field: str, **environment: str
) -> Iterator[Running]:
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, cwd=HERE
    )
    found = Running(name, process.pid, port, path, field)
    try:
        end = time.monotonic() + _START_S
        while True:
            try:
                found.ask()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{name} did not start: {' '.join(command)}") from None
                time.sleep(0.1)
        yield found
    finally:
        found.go()
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def packhorse(
    model: Path,
    *options: str,
    openai: bool = False,
    program: Sequence[str] = ("-m", "packhorse.cli"),
) -> Any:
    """A context that gives `packhorse serve` with these options, by the protocol of
    text-embeddings-inference or of OpenAI. `program`: what Python runs to be the command."""
    port = free_port()
    command = [sys.executable, *program, "serve", f"model={model}"]
    command += ["--port", str(port), "--log-level", "warning", "--auto-truncate", *options]
    path, field = ("/v1/embeddings", "input") if openai else ("/embed", "inputs")
    return _running("Packhorse", command, port, path, field)


def running_server(name: str, models: Sequence[str], port: int, options: Sequence[str]) -> Any:
    """A context that gives `packhorse serve` of these models, with options of its own alone."""
    command = [sys.executable, "-m", "packhorse.cli", "serve", *models]
    command += ["--port", str(port), "--log-level", "warning", *options]
    return _running(name, command, port, "/embed", "inputs")


def infinity(python: Path, model: Path, dtype: str) -> Any:
    """Infinity (infinity-emb), of an environment of its own."""
    port = free_port()
    command = [str(python.parent / "infinity_emb"), "v2", "--model-id", str(model)]
    command += ["--served-model-name", "model", "--engine", "torch", "--device", "cpu"]
    command += ["--dtype", dtype, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--no-bettertransformer", "--log-level", "warning", "--no-model-warmup"]
    return _running(
        "Infinity",
        command,
        port,
        "/embeddings",
        "input",
        INFINITY_ANONYMOUS_USAGE_STATS="0",
        DO_NOT_TRACK="1",
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="2",
        PYTHONPATH="",
    )


def simple_fastapi(python: Path, model: Path, dtype: str) -> Any:
    """sentence-transformers behind FastAPI, of an environment of its own."""
    port = free_port()
    command = [str(python), "peer_app.py", str(model), dtype, str(port)]
    return _running(
        "sentence-transformers, FastAPI",
        command,
        port,
        "/embed",
        "inputs",
        HF_HUB_OFFLINE="1",
        PYTHONPATH="",
    )
