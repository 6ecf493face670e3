"""Random requests to `packhorse serve`, made by schemathesis from the server's own description of
its interface (/openapi.json), while other clients send slow bodies and do not read their answers.
No answer may be an error of the server, or one that the description does not have; another client
never waits long; and afterwards the server still serves.

Usage: python tests/fuzz_serve.py [SECONDS]    (`make fuzz-serve`; needs schemathesis)
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))
from serve_room import Client, make_models, serving, settings_for

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
MOST_S = 2.0  # that another client waits for /health, on two cores that are busy


@contextmanager
def beset(client: Client) -> Iterator[list[float]]:
    """Clients that hold on to what they have until the block ends, and the seconds that another
    one has waited for /health."""
    over = threading.Event()
    waited: list[float] = []

    def hold() -> None:
        while not over.is_set():
            connections = []
            for sent in SLOW * 5:
                with suppress(OSError):
                    connections.append(socket.create_connection(("127.0.0.1", client.port)))
                    connections[-1].settimeout(1)
                    connections[-1].sendall(sent)
            over.wait(5)
            for connection in connections:
                connection.close()

    def probe() -> None:
        while not over.wait(0.2):
            begin = time.monotonic()
            client.get("/health")
            waited.append(time.monotonic() - begin)

    threads = [threading.Thread(target=one) for one in (hold, probe)]
    for thread in threads:
        thread.start()
    try:
        yield waited
    finally:
        over.set()
        for thread in threads:
            thread.join()


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    with tempfile.TemporaryDirectory() as folder:
        models = [f"{name}={path}" for name, path in make_models(Path(folder)).items()]
        with serving(settings_for(*models, payload_limit=1_000_000)) as (client, _):
            command = [sys.executable, "-m", "schemathesis.cli", "run"]
            command += [f"http://127.0.0.1:{client.port}/openapi.json"]
            command += ["--checks", ",".join(CHECKS), "--max-time", str(seconds)]
            command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
            command += ["--generation-database", "none", "--seed", "1", "--warnings", "off"]
            command += ["--suppress-health-check", "all", "--request-timeout", "30"]
            with beset(client) as waited:
                found = subprocess.run(command, timeout=seconds * 2 + 60, cwd=folder).returncode
            assert waited
            assert max(waited) < MOST_S
            assert client.get("/health").status == 200
            for model in client.get("/models").json:
                assert model["queue_requests"] == 0
    return found


if __name__ == "__main__":
    sys.exit(main())
