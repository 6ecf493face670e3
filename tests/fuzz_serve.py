"""Random requests to `packhorse serve`, made by schemathesis from the server's own description of
its interface (/openapi.json), while other clients send slow bodies, do not read their answers, or
send the largest lists and texts that a request may have. No answer may be an error of the server,
or one that the description does not have; another client, who asks for /health, never waits long;
and afterwards the server still serves.

Usage: python tests/fuzz_serve.py [SECONDS]    (`nox -s fuzz-serve`; needs schemathesis)
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python" / "support"))
from hostile_requests import fresh_requests, hostile_requests, make_hostile_models
from serve_process import Prober, serving_process
from serve_room import Client

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
SLOW = (
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900000\r\n\r\n" + b" " * 400_000,
    b"POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1;a",
    b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200,
)

PAYLOAD = 1_000_000
# Seconds that the other client may wait. On a machine with more to do, a server that is ready waits
# for a processor, too: the limit of the longest wait is for requests that hold a server up.
LONGEST_S = 5.0
TYPICAL_S = 0.1  # the median
SLOW_CLIENTS = 20


class Meanwhile:
    """Requests of other clients while the fuzzer runs."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._end = threading.Event()
        self.wrong: list[str] = []
        jobs = [self.send_large, self.hold, *([self.trickle] * SLOW_CLIENTS)]
        self._threads = [threading.Thread(target=job, daemon=True) for job in jobs]

    def __enter__(self) -> Meanwhile:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def trickle(self) -> None:
        """Bodies that come byte by byte, and never end."""
        head = f"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: {PAYLOAD // 2}\r\n\r\n"
        while not self._end.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=60) as one:
                    one.sendall(head.encode() + b'{"inputs": "')
                    while not self._end.wait(0.1):
                        one.sendall(b"a")
            except OSError:  # the server has had enough of it
                self._end.wait(0.1)

    def hold(self) -> None:
        """Bodies that stop coming, and answers that nobody reads."""
        while not self._end.is_set():
            connections = []
            for sent in SLOW * 5:
                with suppress(OSError):
                    connections.append(socket.create_connection(("127.0.0.1", self._port)))
                    connections[-1].settimeout(1)
                    connections[-1].sendall(sent)
            self._end.wait(5)
            for connection in connections:
                connection.close()

    def send_large(self) -> None:
        for number in itertools.count():
            for one in (*fresh_requests(number), *hostile_requests(PAYLOAD - 50_000, 256)):
                if self._end.is_set():
                    return
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
                try:
                    connection.request("POST", one.path, one.body())
                    status = connection.getresponse().status
                except (ConnectionError, http.client.HTTPException):
                    continue
                finally:
                    connection.close()
                if status == 500:
                    self.wrong.append(one.name)


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    with tempfile.TemporaryDirectory() as folder:
        models = make_hostile_models(Path(folder))
        options = ("--payload-limit", str(PAYLOAD), "--kv-tokens", "4096")
        with serving_process(models, *options) as (port, _):
            command = [sys.executable, "-m", "schemathesis.cli", "run"]
            command += [f"http://127.0.0.1:{port}/openapi.json"]
            command += ["--checks", ",".join(CHECKS), "--max-time", str(seconds)]
            command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
            command += ["--generation-database", "none", "--seed", "1", "--warnings", "off"]
            command += ["--suppress-health-check", "all", "--request-timeout", "60"]
            with Meanwhile(port) as others, Prober(port) as prober:
                found = subprocess.run(command, timeout=seconds * 2 + 60, cwd=folder).returncode
            client = Client(port)
            assert client.get("/health").status == 200
            for model in client.get("/models").json:
                assert model["queue_requests"] == 0
            waits = {"median": statistics.median(prober.waits), "longest": max(prober.waits)}
            print(json.dumps({"seconds for /health": waits, "errors": others.wrong[:5]}))
            assert not others.wrong
            assert waits["median"] < TYPICAL_S
            assert waits["longest"] < LONGEST_S
    return found


if __name__ == "__main__":
    sys.exit(main())
