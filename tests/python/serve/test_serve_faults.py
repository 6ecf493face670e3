"""`packhorse serve`: clients that die, stall, flood or send nonsense, and models that fail. Each
has its answer, and the server serves on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse import EncoderSession, TextModel
from serve_room import PACKAGES, Client, connect, read_all, serving, settings_for, wait_until
from shared_runs import SECONDS, Runs

for package in PACKAGES:
    pytest.importorskip(package)

TEXT = "the cat sat on the mat"
HEAD = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
MEGABYTE = 1_000_000
_DIES = """
import os, signal, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
body = b'{"inputs": "the dog"}'
head = b"POST /embed HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-length: %d\\r\\n\\r\\n"
connection.sendall(head % len(body) + body[: int(sys.argv[2])])
print("sent", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def served(minilm: Path) -> Iterator[tuple[Client, Any]]:
    settings = settings_for(
        f"minilm={minilm}", admin=True, payload_limit=2 * MEGABYTE, max_wait_s=60
    )
    with serving(settings) as found:
        yield found


@pytest.fixture(scope="module")
def expected(minilm: Path) -> Any:
    with TextModel.load(minilm, threads=1) as model:
        return model.embed([TEXT])


@pytest.fixture
def client(served: tuple[Client, Any], expected: Any) -> Iterator[Client]:
    """A client of a server that, when the test has ended, still gives the right answer and waits
    for nothing."""
    client, server = served
    yield client
    check(client, expected)
    queue = server.service.registry.first().queue
    wait_until(lambda: (queue.tokens, queue.requests) == (0, 0))
    wait_until(lambda: len(server.server_state.tasks) == 0)


def check(client: Client, expected: Any) -> None:
    answer = client.post("/embed", {"inputs": [TEXT]})
    assert answer.status == 200, answer.body
    np.testing.assert_array_equal(np.array(answer.json, np.float32), expected)


def with_body(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(line + b"\r\n" for line in headers)
    return HEAD + lines + b"content-length: %d\r\n\r\n" % len(body) + body


# --- clients that go away


@pytest.mark.parametrize("sent", [5, 21], ids=["in its body", "waiting for the answer"])
def test_a_client_is_killed(
    served: tuple[Client, Any], client: Client, runs: Runs, sent: int
) -> None:
    queue = served[1].service.registry.first().queue
    first = runs.hold(lambda: client.post("/embed", {"inputs": [TEXT]}))
    other = subprocess.Popen(
        [sys.executable, "-c", _DIES, str(client.port), str(sent)], stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"sent\n"
        if sent == 21:
            wait_until(lambda: queue.requests == 1)
        os.kill(other.pid, signal.SIGKILL)
    wait_until(lambda: queue.requests == 0)
    runs.release()
    assert first.result(SECONDS).status == 200
    assert runs.sequences == [1]  # what was given up has not run


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def test_connections_are_reset(client: Client) -> None:
    for size in (10, len(HEAD), len(HEAD) + 30, 10_000):
        with connect(client) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(with_body(json.dumps({"inputs": [TEXT] * 50}).encode())[:size])


# --- clients that stall


def test_a_slow_reader(client: Client, expected: Any) -> None:
    """Its answer is larger than the buffers between; others are served meanwhile, and it finds all
    of it when it reads."""
    body = json.dumps({"inputs": [TEXT] * 400}).encode()
    with connect(client, SO_RCVBUF=4096) as connection:
        connection.sendall(with_body(body, b"connection: close"))
        for _ in range(5):
            check(client, expected)
        answer = read_all(connection)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    np.testing.assert_array_equal(
        np.array(json.loads(content), np.float32), np.repeat(expected, 400, 0)
    )


def test_a_slow_reader_goes_away(client: Client) -> None:
    body = json.dumps({"inputs": [TEXT] * 400}).encode()
    with connect(client, SO_RCVBUF=4096) as connection:
        connection.sendall(with_body(body))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_half_open_connections(client: Client, expected: Any) -> None:
    """Hundreds that say nothing keep nobody else from being served."""
    idle = [connect(client) for _ in range(300)]
    check(client, expected)
    for connection in idle[::2]:
        connection.shutdown(socket.SHUT_WR)
    check(client, expected)
    for connection in idle:
        connection.close()


# --- nonsense


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"inputs": "a"} more', 400),
        (b"\xff\xfe\x00", 400),
        (b'{"inputs": "\xc3\x28"}', 400),
        (b'{"inputs": "\\ud800"}', 400),
        (b'{"inputs": ' + b"[" * 50_000 + b"]" * 100_000 + b"}", 400),
        (b'{"inputs": NaN}', 400),
        (b'{"inputs": 1e999}', 400),
        (b'["a"]', 422),
        (b'{"inputs": {"a": 1}}', 422),
        (b'{"inputs": [1, -1]}', 422),
        (b'{"inputs": [["a"], 1]}', 422),
        (b'{"inputs": [18446744073709551616]}', 422),
        (b'{"inputs": "a", "dimensions": 99999999999999999999}', 422),
        (b'{"inputs": "a", "truncate": "yes"}', 422),
        (b'{"inputs": []}', 400),
        (b'{"inputs": "\\u0000"}', 200),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bodies_that_are_wrong(client: Client, body: bytes, status: int) -> None:
    answer = client.post("/embed", body)
    assert answer.status == status, answer.body
    if status != 200:
        assert answer.json["error"]
        assert "internal" not in answer.json["error"]


def resident() -> int:
    """Bytes of memory of this process, the server's."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_megabytes(client: Client, chunked: bool) -> None:
    """It is refused before it has come, and is not kept: with its length known, or when it gets
    too long."""
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: 100000000"
    piece = b"a" * MEGABYTE
    before = resident()
    with connect(client) as connection:
        connection.sendall(HEAD + framing + b"\r\n\r\n")
        if not chunked:
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
        try:
            for _ in range(100):
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        except (BrokenPipeError, ConnectionResetError):
            return
        if chunked:
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    assert resident() - before < 20 * MEGABYTE


@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"x-%d: y\r\n" % i for i in range(20_000)),
        b"x: " + b"y" * MEGABYTE,
        b"y" * MEGABYTE,
    ],
    ids=["many headers", "a long one", "a name without end"],
)
def test_a_flood_of_headers(client: Client, flood: bytes) -> None:
    with connect(client) as connection:
        try:
            connection.sendall(HEAD + flood)
        except (BrokenPipeError, ConnectionResetError):
            return
        answer = read_all(connection)
    assert re.match(rb"(HTTP/1.1 4(31|00) |$)", answer), answer[:100]


@pytest.mark.parametrize(
    "message",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        bytes(range(256)) * 10,
    ],
    ids=["TLS", "a version", "a length", "two lengths", "a chunk", "bytes"],
)
def test_no_http(client: Client, message: bytes) -> None:
    with connect(client) as connection:
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert re.match(rb"(HTTP/1.1 4\d\d |$)", answer), answer[:100]


# --- models that fail


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_the_device_fails(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(*_arguments: object, **_options: object) -> None:
        raise error("out of memory: 3 GB asked for, 1 GB free")

    with monkeypatch.context() as patched:
        patched.setattr(EncoderSession, "run", fails)
        answer = client.post("/embed", {"inputs": [TEXT]})
        assert (answer.status, answer.json["error_type"]) == (424, "Backend")
        assert "3 GB asked for" in answer.json["error"]
        as_openai = client.post("/v1/embeddings", {"input": TEXT})
        assert (as_openai.status, as_openai.json["error"]["type"]) == (500, "server_error")
        assert client.get("/health").status == 200


def test_models_that_do_not_load(
    client: Client, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = client.post("/models", {"name": "none", "path": str(tmp_path / "nothing")})
    assert answer.status == 422
    broken = tmp_path / "broken"
    shutil.copytree(minilm, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:MEGABYTE])
    answer = client.post("/models", {"name": "broken", "path": str(broken)})
    assert answer.status in (422, 424)
    assert "broken" in answer.json["error"]

    def full(*_arguments: object, **_options: object) -> None:
        raise MemoryError("the device has 1 GB free, the model takes 3 GB")

    with monkeypatch.context() as patched:
        patched.setattr(TextModel, "load", full)
        answer = client.post("/models", {"name": "large", "path": str(minilm)})
        again = client.post("/models/minilm/reload", {})
    for one in (answer, again):
        assert (one.status, one.json["error_type"]) == (424, "Backend")
        assert "the model takes 3 GB" in one.json["error"]
    assert [one["name"] for one in client.get("/models").json] == ["minilm"]
