"""`packhorse serve`: clients that hold on to what the server has. Each request, answer, handshake
and silence has its time, connections and bodies their bounds, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from checkpoints import GOLDEN
from packhorse.serve import Settings
from packhorse.serve.errors import ClientGoneError
from packhorse.serve.http.connection import Connection
from packhorse.serve.http.connections import default_most
from packhorse.serve.models.generating import Running
from serve_room import (
    PACKAGES,
    SECONDS,
    Client,
    connect,
    read_all,
    serve_chance,
    serving,
    settings_for,
    wait_until,
)
from shared_runs import Runs
from tiny_tokenizer import SPECIAL, make_tokenizer, with_tokenizer

for package in PACKAGES:
    pytest.importorskip(package)

HEAD = b"POST /predict HTTP/1.1\r\nhost: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
TIMES: dict[str, Any] = {"receive_timeout_s": 0.2, "write_timeout_s": 0.2, "keep_alive_s": 0.3}
LATE = 30.0  # seconds in which all of these must be over, on a machine that does other things, too


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path_factory.mktemp("model") / "m")
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    return f"m={folder}"


@pytest.fixture(scope="module")
def served(model: str) -> Iterator[tuple[Client, Any]]:
    with serving(settings_for(model, **TIMES)) as found:
        yield found


def refused(client: Client, reason: str) -> float:
    text = client.get("/metrics").body.decode()
    lines = [line for line in text.splitlines() if f'reason="{reason}"' in line]
    return float(lines[0].split()[-1]) if lines else 0.0


def predicts(client: Client) -> bool:
    return client.post("/predict", {"inputs": "the cat"}).status == 200


# --- requests that do not come

# (what is sent at once, what is sent again and again, how the answer begins)
SLOW = {
    "nothing": (b"", b"", b""),
    "empty lines": (b"", b"\r\n", b""),
    "half a line": (b"POST /emb", b"", b""),
    "headers that trickle": (HEAD, b"a: b\r\n", b""),
    "no body": (HEAD + b"content-length: 9\r\n\r\n", b"", b"HTTP/1.1 504 "),
    "a body that trickles": (HEAD + b"content-length: 9999\r\n\r\n", b" ", b"HTTP/1.1 504 "),
    "no body after 100": (
        HEAD + b"expect: 100-continue\r\ncontent-length: 9\r\n\r\n",
        b"",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 504 ",
    ),
    "a body nobody reads": (
        GET[:-2] + b"content-length: 9999\r\n\r\n",
        b" ",
        b"HTTP/1.1 200 ",
    ),
    "chunks that trickle": (CHUNKED, b"1\r\n \r\n", b"HTTP/1.1 504 "),
    "an extension of a chunk": (CHUNKED + b"1;a=", b"a", b"HTTP/1.1 504 "),
    "trailers": (CHUNKED + b"1\r\n \r\n0\r\n", b"a: b\r\n", b"HTTP/1.1 504 "),
    "idle": (GET, b"", b"HTTP/1.1 200 "),
    "half of a second": (GET + HEAD, b"", b"HTTP/1.1 200 "),
    "a second without a body": (
        GET + HEAD + b"content-length: 9\r\n\r\n",
        b"",
        b"HTTP/1.1 200 ",
    ),
}


def test_requests_that_do_not_come(served: tuple[Client, Any]) -> None:
    """One clock for a request, from its first byte to its last; bytes that trickle do not wind it
    up again."""
    client, server = served
    begin = time.monotonic()
    open_ = {name: connect(client, sent) for name, (sent, _, _) in SLOW.items()}
    answers = dict.fromkeys(SLOW, b"")
    with ExitStack() as stack:
        for connection in open_.values():
            stack.enter_context(connection).settimeout(0.001)
        while open_ and time.monotonic() < begin + LATE:
            for name, connection in list(open_.items()):
                try:
                    connection.sendall(SLOW[name][1])
                    part = connection.recv(65536)
                except TimeoutError:
                    continue
                except ConnectionError:
                    part = b""
                answers[name] += part
                if not part:
                    del open_[name]
    assert not open_
    for name, (_, _, expected) in SLOW.items():
        assert answers[name].startswith(expected), (name, answers[name])
        assert expected or not answers[name]
    assert b"HTTP/1.1 504 " in answers["a second without a body"]
    wait_until(lambda: len(server.connections) == len(server.server_state.tasks) == 0)
    assert predicts(client)
    assert refused(client, "slow_request") == 10


def test_framing_without_end(served: tuple[Client, Any]) -> None:
    """Bytes that are neither a header nor a body are not kept either."""
    client, _ = served
    for begin, more in ((CHUNKED + b"1;a=", b"a"), (CHUNKED + b"0\r\n", b"a: b\r\n")):
        with connect(client, begin) as connection:
            connection.sendall(more * (100_000 // len(more)))
            assert read_all(connection).startswith(b"HTTP/1.1 431 ")


def test_the_request_has_no_longer_than_all_of_it(model: str) -> None:
    with (
        serving(settings_for(model, request_timeout_s=0.1)) as (client, _),
        connect(client, HEAD + b"content-length: 9\r\n\r\n") as connection,
    ):
        assert read_all(connection).startswith(b"HTTP/1.1 504 ")


# --- many requests on one connection


def test_pipelined_requests_wait_their_turn(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are answered, in order, and few are begun before their turn, behind a long body, too."""
    begun: list[int] = []
    complete = Connection.on_headers_complete

    def counted(self: Connection) -> None:
        complete(self)
        begun.append(len(self.pipeline))

    monkeypatch.setattr(Connection, "on_headers_complete", counted)
    count = 3000
    ids = [b"GET /health HTTP/1.1\r\nx-request-id: %d\r\n\r\n" % i for i in range(count - 1)]
    length = 200_000
    long = b"POST /predict HTTP/1.1\r\nx-request-id: 0\r\ncontent-length: %d\r\n\r\n" % length
    ids[0] = long + b"x" * length
    last = b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"
    with (
        serving(settings_for(model)) as (client, _),
        connect(client) as connection,
        ThreadPoolExecutor(1) as thread,
    ):
        sending = thread.submit(connection.sendall, b"".join([*ids, last]))
        answer = read_all(connection)
        sending.result(SECONDS)
    found = [line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id: ")]
    assert found[:-1] == [b"x-request-id: %d" % i for i in range(count - 1)]
    assert max(begun) < 150


def test_long_bodies_one_behind_the_other(served: tuple[Client, Any]) -> None:
    """Each body is read up to its end, wherever parts of it end, and no further."""
    client, _ = served
    bodies = [json.dumps({"inputs": "a", "ignored": "x" * size}) for size in (200_000, 1, 70_001)]
    requests = [HEAD + b"content-length: %d\r\n\r\n%s" % (len(one), one.encode()) for one in bodies]
    end = b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n"
    with connect(client) as connection, ThreadPoolExecutor(1) as thread:
        sending = thread.submit(connection.sendall, b"".join([*requests, end]))
        answer = read_all(connection)
        sending.result(SECONDS)
    assert answer.count(b"ignored") == len(bodies)
    assert answer.count(b"HTTP/1.1 200") == 1


def in_chunks(parts: list[bytes]) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]


def test_bodies_that_come_in_parts(served: tuple[Client, Any]) -> None:
    """A long body is that of its parts, whatever says how long it is, also where the client waits
    to be asked for it; and nothing of it counts when it has been answered."""
    client, server = served
    body = json.dumps({"inputs": "a", "pad" * 9: "x" * 300_000}).encode()
    parts = [body[:1], body[1:150_000], body[150_000:-2], body[-2:]]
    length = b"content-length: %d\r\n" % len(body)
    asked = b"expect: 100-continue\r\n"
    cases: list[tuple[bytes, list[bytes]]] = [
        (HEAD + length + b"\r\n", parts),
        (HEAD + length + asked + b"\r\n", parts),
        (CHUNKED, in_chunks(parts)),
    ]
    free = server.service.bodies._left
    with connect(client) as connection:
        for head, pieces in cases:
            connection.sendall(head)
            if asked in head:
                assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            for piece in pieces[:-1]:
                connection.sendall(piece)
                time.sleep(0.01)  # so that it comes by itself
            connection.sendall(pieces[-1])
            answer = connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 422 ")
            assert b"pad" * 9 in answer  # the field is read as it was sent, and is not known
    wait_until(lambda: server.service.bodies._left == free)


def test_a_client_leaves_within_a_body(served: tuple[Client, Any]) -> None:
    client, server = served
    free = server.service.bodies._left
    with connect(client, HEAD + b"content-length: 300000\r\n\r\n" + b" " * 200_000):
        wait_until(lambda: server.service.bodies._left < free)
    wait_until(lambda: server.service.bodies._left == free)
    assert predicts(client)


def test_what_comes_while_one_is_answered_is_left_to_the_client(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch)
    with serving(settings_for(model, **TIMES)) as (client, server):
        first = runs.hold(lambda: predicts(client))
        body = json.dumps({"inputs": "the dog"}).encode()
        one = HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        with connect(client, one, SO_SNDBUF=4096) as connection:
            connection.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.sendall(one * 200_000)
            held = [len(each._held) for each in server.connections._open]
            runs.release()
            assert 0 < max(held) < 1_000_000
            assert first.result(SECONDS)


# --- answers that are not read


@pytest.mark.parametrize("trickle", [0, 1000])
def test_answers_that_are_not_read(served: tuple[Client, Any], trickle: int) -> None:
    client, server = served
    before = refused(client, "slow_reader")
    begin = time.monotonic()
    get = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connect(client, get * 200, SO_RCVBUF=4096) as connection:
        wait_until(lambda: len(server.connections) == 1)
        while len(server.connections):
            if trickle:
                connection.recv(trickle)
            time.sleep(0.01)
            assert time.monotonic() < begin + LATE
    assert refused(client, "slow_reader") == before + 1


def test_streams_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that nobody takes stops to be written, and then to be generated."""
    serve_chance(monkeypatch)
    with serving(settings_for("chance=chance", **TIMES)) as (client, server):
        server._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        body = json.dumps(
            {"prompt": ["a"] * 4, "max_tokens": 1000, "stream": True, "logprobs": 5}
        ).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        with connect(client, head % len(body) + body, SO_RCVBUF=4096) as connection:
            wait_until(lambda: len(server.server_state.tasks) == 1)
            most, begin = 0, time.monotonic()
            while server.server_state.tasks:
                most = max([most, *(one._pending() for one in list(server.connections._open))])
                time.sleep(0.01)
                assert time.monotonic() < begin + LATE
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert 0 < most < 500_000
        assert refused(client, "slow_reader") == 1
        assert client.metric("packhorse_generation_running") == 0


def test_a_client_leaves_with_another_request_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that it waits for is given up, though it asked last for something else."""
    serve_chance(monkeypatch)
    left = asyncio.Event()

    async def no_pieces(_running: Running) -> AsyncIterator[list[str]]:
        await left.wait()
        raise ClientGoneError
        yield []

    monkeypatch.setattr(Running, "pieces", no_pieces)
    monkeypatch.setattr(Running, "leave", lambda _running: left.set())
    with serving(settings_for("chance=chance")) as (client, server):
        body = json.dumps({"prompt": "a"}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        with connect(client, head % len(body) + body + GET):
            news = server.service.registry.first().engines[0].news
            wait_until(lambda: news._waiting)
        wait_until(lambda: not server.server_state.tasks)
        assert left.is_set()


# --- many connections


def test_too_many_connections(model: str) -> None:
    """Those that are idle give way; where there is none, the new one is told so, and may still ask
    how the server is."""
    with serving(settings_for(model, max_connections=4)) as (client, server), ExitStack() as stack:
        idle = [stack.enter_context(connect(client)) for _ in range(4)]
        wait_until(lambda: len(server.connections) == 4)
        assert predicts(client)
        assert idle[0].recv(1) == b""
        wait_until(lambda: len(server.connections) == 3)
        half = HEAD + b"content-length: 9\r\n\r\n"
        busy = [stack.enter_context(connect(client, half)) for _ in range(4)]
        wait_until(lambda: not server.connections._idle)
        for _ in range(3):
            answer = client.post("/predict", {"inputs": "the cat"})
            assert (answer.status, answer.json["error_type"]) == (503, "Overloaded")
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
            assert client.get("/health").status == 200
        # More of them than there is room for: the latest is heard.
        silent = [stack.enter_context(connect(client)) for _ in range(30)]
        wait_until(lambda: len(server.connections) == 4 + 16)
        assert read_all(silent[0]) == b""
        assert client.get("/health").status == 200
        assert refused(client, "connections") > 30
        for one in busy:
            one.close()
        wait_until(lambda: len(server.connections._open) < 20)
        for one in silent:
            one.close()
        wait_until(lambda: len(server.connections) == 0)
        assert predicts(client)


def test_descriptors_bound_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, least, most in ((256, 64, 200), (1 << 20, 4096, 4096), (20, 16, 16)):
        monkeypatch.setattr("resource.getrlimit", lambda _which, soft=soft: (soft, soft))
        assert least <= default_most() <= most


def test_bodies_of_all_requests_are_bounded(model: str) -> None:
    settings = settings_for(model, payload_limit=200_000, max_body_bytes=200_000)
    with serving(settings) as (client, server), ExitStack() as stack:
        half = HEAD + b"content-length: 200000\r\n\r\n" + b" " * 190_000
        first = stack.enter_context(connect(client, half))
        wait_until(lambda: server.service.bodies._left < 100_000)
        second = stack.enter_context(connect(client, half))
        answer = read_all(second)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        assert predicts(client)  # what is small is served
        first.sendall(b" " * 10_000)
        assert first.recv(100).startswith(b"HTTP/1.1 400 ")
        wait_until(lambda: server.service.bodies._left == 200_000)
        whole = json.dumps({"inputs": "a"}).encode() + b" " * 199_000
        assert client.post("/predict", whole).status == 200
        assert refused(client, "bodies") == 1


# --- TLS, and the end


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl that makes a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out"
    subprocess.run([*made.split(), certificate], check=True, capture_output=True)
    return {"ssl_certfile": os.fspath(certificate), "ssl_keyfile": os.fspath(key)}


def secured(client: Client, certificate: dict[str, str]) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=certificate["ssl_certfile"])
    context.check_hostname = False
    return context.wrap_socket(connect(client))


def test_tls_has_clocks_too(model: str, certificate: dict[str, str]) -> None:
    with serving(settings_for(model, **TIMES, **certificate)) as (client, server):
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"):
            with connect(client, sent) as connection:
                wait_until(lambda: len(server.connections) <= 1)
                connection.settimeout(LATE)
                read_all(connection)
            wait_until(lambda: len(server.connections) == 0)
        for sent in (b"", HEAD):
            with secured(client, certificate) as connection:
                connection.sendall(sent)
                connection.settimeout(LATE)
                assert read_all(connection) == b""
            wait_until(lambda: len(server.connections) == 0)
        get = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with secured(client, certificate) as connection:
            connection.sendall(get * 300)
            begin = time.monotonic()
            wait_until(lambda: len(server.connections) == 0)
            assert time.monotonic() < begin + LATE


def ends(model: str, timeout_s: float, hold: Any, **given: Any) -> float:
    """Seconds in which a server ends while clients hold on to it."""
    settings: Settings = settings_for(model, shutdown_timeout_s=timeout_s, **given)
    with serving(settings) as (client, server), ExitStack() as stack:
        hold(client, server, stack)
        begin = time.monotonic()
        server.should_exit = True
        wait_until(lambda: not server.service.registry.models())
        return time.monotonic() - begin


def test_the_end_comes_whatever_clients_do(model: str) -> None:
    def hold(client: Client, server: Any, stack: ExitStack) -> None:
        half = HEAD + b"content-length: 9\r\n\r\n"
        get = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
        for sent in (b"", HEAD, half, half + b"x", CHUNKED + b"1;a", GET, GET + HEAD, get * 200):
            stack.enter_context(connect(client, sent, SO_RCVBUF=4096))
        wait_until(lambda: len(server.server_state.tasks) == 4)

    assert 0.2 < ends(model, 0.2, hold) < LATE


def test_idle_clients_of_tls_do_not_delay_the_end(model: str, certificate: dict[str, str]) -> None:
    def hold(client: Client, server: Any, stack: ExitStack) -> None:
        stack.enter_context(connect(client))
        one = stack.enter_context(secured(client, certificate))
        one.sendall(GET)
        assert one.recv(100).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: len(server.connections) == 2)

    long = dict.fromkeys([*TIMES, "request_timeout_s"], 600)
    assert ends(model, 600, hold, **long, **certificate) < LATE


def test_nobody_is_taken_before_models_are_loaded(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packhorse.serve.http.service import Service
    from packhorse.serve.server import Server

    found: list[str] = []
    start = Service.start

    async def watched(service: Service) -> None:
        for _ in range(2):
            try:
                Client(server._sockets[0].getsockname()[1]).get("/health")
            except ConnectionRefusedError:
                found.append("refused")
        await start(service)
        server.should_exit = True

    monkeypatch.setattr(Service, "start", watched)
    server = Server(settings_for(model))
    server.serve_until_told()
    assert found[:2] == ["refused"] * 2
