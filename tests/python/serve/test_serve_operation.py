"""`packhorse serve`: many clients, too many of them, those that go away, and models that change
while others serve."""

from __future__ import annotations

import http.client
import json
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse import EncoderSession, TextModel
from packhorse.serve import Settings
from serve_room import PACKAGES, Answer, Client, serving, settings_for, wait_until
from shared_runs import SECONDS, Runs, in_thread

for package in PACKAGES:
    pytest.importorskip(package)

TEXTS = [f"{'the cat sat ' * (i % 7)}on mat {i}" for i in range(40)]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.fixture(scope="module")
def served(minilm: Path) -> Iterator[tuple[Client, Any]]:
    settings = settings_for(
        f"minilm={minilm}",
        api_key=("first", "second"),
        admin=True,
        max_queue_tokens=200,
        max_batch_ms=1e6,
        max_wait_s=1e6,
    )
    with serving(settings) as (client, server):
        client.headers["Authorization"] = "Bearer first"
        yield client, server


@pytest.fixture
def client(served: tuple[Client, Any]) -> Client:
    return served[0]


@pytest.fixture
def queue(served: tuple[Client, Any]) -> Any:
    return served[1].service.registry.first().queue


@pytest.fixture(scope="module")
def expected(minilm: Path) -> dict[str, Any]:
    with TextModel.load(minilm, threads=1) as model:
        return {text: model.embed(text) for text in TEXTS}


def embed(client: Client, *texts: str) -> Answer:
    return client.post("/embed", {"inputs": list(texts)})


def check(answer: Answer, expected: dict[str, Any], *texts: str) -> None:
    assert answer.status == 200, answer.body
    for row, text in zip(answer.json, texts, strict=True):
        np.testing.assert_array_equal(np.array(row, np.float32), expected[text])


def gather(client: Client, queue: Any, requests: list[tuple[str, ...]]) -> list[Future[Answer]]:
    """Sends requests, and comes back when all of them wait in the queue."""
    sent = [in_thread(lambda texts=texts: embed(client, *texts)) for texts in requests]
    wait_until(lambda: waiting(queue) == len(sent))
    return sent


def waiting(queue: Any) -> int:
    """Requests that were tokenized, and of which nothing has run."""
    works = [work for one in list(queue._clients.values()) for work in list(one.works)]
    return sum(work.admitted for work in works)


# --- batches


def test_waiting_requests_share_a_batch(
    client: Client, queue: Any, runs: Runs, expected: dict[str, Any]
) -> None:
    first = runs.hold(lambda: embed(client, TEXTS[0]))
    requests = [(TEXTS[i], TEXTS[i + 1]) for i in range(0, 8, 2)]
    others = gather(client, queue, requests)
    runs.release()
    check(first.result(SECONDS), expected, TEXTS[0])
    for found, texts in zip(others, requests, strict=True):
        check(found.result(SECONDS), expected, *texts)
    assert runs.sequences == [1, 8]


def test_the_same_bits_under_load(client: Client, expected: dict[str, Any]) -> None:
    """Requests of any size at an unruly pace, results in order."""

    def ask(number: int) -> None:
        # Four of these fit the queue.
        texts = [TEXTS[(number * 7 + i) % 40] for i in range(1 + number % 2)]
        check(embed(client, *texts), expected, *texts)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(40)))


def test_an_error_of_one_batch_fails_only_what_must(
    client: Client,
    queue: Any,
    runs: Runs,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch that fails is run again, a request at a time."""
    first = runs.hold(lambda: embed(client, TEXTS[0]))
    others = gather(client, queue, [(TEXTS[1],), (TEXTS[2],)])
    watched = EncoderSession.run

    def fails(session: EncoderSession, batch: Any, **options: Any) -> Any:
        if bad.tobytes() in batch.ids.tobytes():
            raise MemoryError("no memory for this")
        return watched(session, batch, **options)

    with TextModel.load(client_model(client), threads=1) as model:
        bad = model.tokenizer.encode([TEXTS[2]], None).ids[0]
    monkeypatch.setattr(EncoderSession, "run", fails)
    runs.release()
    check(first.result(SECONDS), expected, TEXTS[0])
    check(others[0].result(SECONDS), expected, TEXTS[1])
    failed = others[1].result(SECONDS)
    assert (failed.status, failed.json["error_type"]) == (424, "Backend")
    assert "no memory for this" in failed.json["error"]
    monkeypatch.setattr(EncoderSession, "run", watched)
    check(embed(client, TEXTS[2]), expected, TEXTS[2])


def client_model(client: Client) -> str:
    path: str = client.get("/models/minilm").json["path"]
    return path


# --- too much, too late, gone


def test_overload(client: Client, queue: Any, runs: Runs, expected: dict[str, Any]) -> None:
    first = runs.hold(lambda: embed(client, TEXTS[0]))
    others = gather(client, queue, [(TEXTS[5],) * 8])
    refused = embed(client, *[TEXTS[6]] * 8)
    assert (refused.status, refused.json["error_type"]) == (429, "Overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    as_openai = client.post("/v1/embeddings", {"input": [TEXTS[6]] * 8})
    assert (as_openai.status, as_openai.json["error"]["code"]) == (429, "overloaded")
    runs.release()
    check(first.result(SECONDS), expected, TEXTS[0])
    check(others[0].result(SECONDS), expected, *[TEXTS[5]] * 8)
    check(embed(client, TEXTS[6]), expected, TEXTS[6])
    assert (queue.tokens, queue.requests) == (0, 0)


def test_a_client_that_goes_away_is_not_waited_for(
    client: Client, queue: Any, runs: Runs, expected: dict[str, Any]
) -> None:
    first = runs.hold(lambda: embed(client, TEXTS[0]))
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    body = json.dumps({"inputs": TEXTS[1]})
    connection.request("POST", "/embed", body, dict(client.headers))
    wait_until(lambda: queue.requests == 1)
    assert connection.sock is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    wait_until(lambda: queue.requests == 0)
    assert queue.tokens == 0
    runs.release()
    check(first.result(SECONDS), expected, TEXTS[0])
    check(embed(client, TEXTS[2]), expected, TEXTS[2])
    assert runs.sequences == [1, 1]  # what was given up has not run
    assert client.metric("packhorse_requests_total") > 0


def test_a_request_that_takes_too_long(
    served: tuple[Client, Any], runs: Runs, expected: dict[str, Any]
) -> None:
    client, server = served
    settings = server.service.settings
    first = runs.hold(lambda: embed(client, TEXTS[0]))
    object.__setattr__(settings, "request_timeout_s", 0.05)
    try:
        late = embed(client, TEXTS[1])
    finally:
        object.__setattr__(settings, "request_timeout_s", 60.0)
    assert (late.status, late.json["error_type"]) == (504, "Timeout")
    runs.release()
    check(first.result(SECONDS), expected, TEXTS[0])


# --- who may use it


def test_api_keys(client: Client) -> None:
    bare = Client(client.port)
    for headers, said in (
        ({}, "missing"),
        ({"Authorization": "Bearer third"}, "is not one"),
        ({"Authorization": "Basic first"}, "is not one"),
    ):
        refused = bare.post("/embed", {"inputs": "a"}, headers=headers)
        assert (refused.status, refused.json["error_type"]) == (401, "Unauthorized")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert said in refused.json["error"]
    taken = bare.post("/embed", {"inputs": "a"}, headers={"authorization": "bearer second"})
    assert taken.status == 200
    for path in ("/health", "/ready", "/metrics", "/openapi.json"):
        assert bare.get(path).status == 200
    assert bare.get("/models").status == 401


def test_keys_are_clients_that_take_turns(
    client: Client, queue: Any, runs: Runs, served: tuple[Client, Any]
) -> None:
    server = served[1]
    server.service.registry.first().queue.throughput._batch_s, before = (
        1e-9,
        queue.throughput._batch_s,
    )
    other = Client(client.port)
    other.headers["Authorization"] = "Bearer second"
    try:
        first = runs.hold(lambda: embed(client, TEXTS[0]))
        sent = []
        for text, one in [("a cat", client)] * 4 + [("a cat and a dog", other)]:
            sent.append(in_thread(lambda text=text, one=one: embed(one, text)))
            wait_until(lambda: waiting(queue) == len(sent))
        runs.release()
        for future in [first, *sent]:
            future.result(SECONDS)
    finally:
        queue.throughput._batch_s = before
    # A request at a time, the longer one not after all four of the other client.
    assert len(runs.tokens) == 6
    assert runs.tokens.index(max(runs.tokens[1:]), 1) < 4


# --- models


def test_models_change_while_others_serve(
    client: Client, tmp_path: Path, expected: dict[str, Any]
) -> None:
    path = client_model(client)
    (about,) = client.get("/models").json
    assert (about["name"], about["methods"]) == ("minilm", ["embed", "embed_all"])
    stop = threading.Event()

    def keep_asking() -> int:
        count = 0
        while not stop.is_set():
            check(embed(client, TEXTS[count % 40]), expected, TEXTS[count % 40])
            count += 1
        return count

    asking = [in_thread(keep_asking) for _ in range(3)]
    try:
        loaded = client.post("/models", {"name": "again", "path": path, "threads": 1})
        assert loaded.status == 201
        found = client.post("/embed", {"inputs": TEXTS[0], "model": "again"})
        check(found, expected, TEXTS[0])
        assert client.post("/models", {"name": "again", "path": path}).status == 409
        for _ in range(3):
            assert client.post("/models/minilm/reload", None).status == 200
        assert client.ask("DELETE", "/models/again").status == 204
        gone = client.post("/embed", {"inputs": TEXTS[0], "model": "again"})
        assert (gone.status, gone.json["error_type"]) == (404, "NotFound")
    finally:
        stop.set()
    assert sum(one.result(SECONDS) for one in asking) > 0
    missing = client.post("/models", {"path": str(tmp_path / "nothing")})
    assert (missing.status, missing.json["error_type"]) == (422, "Validation")
    unknown = client.post("/models", {"path": path, "dtyp": "int8"})
    assert "no setting 'dtyp'" in unknown.json["error"]
    assert client.ask("DELETE", "/models/again").status == 404
    assert [one["name"] for one in client.get("/models").json] == ["minilm"]


def test_models_are_not_changed_where_that_is_off(minilm: Path) -> None:
    settings = settings_for(f"minilm={minilm}", cors_allow_origin=("https://a.example",))
    with serving(settings) as (client, _):
        for method, path in (
            ("POST", "/models"),
            ("POST", "/models/minilm/reload"),
            ("DELETE", "/models/minilm"),
        ):
            refused = client.ask(method, path, {"path": "x"})
            assert (refused.status, refused.json["error_type"]) == (403, "Forbidden")
        origin = {"Origin": "https://a.example"}
        answer = client.post("/embed", {"inputs": "a"}, headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"


# --- the connection


def raw(client: Client, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", client.port), timeout=SECONDS) as connection:
        connection.sendall(data)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


def test_headers_without_end_are_refused(client: Client) -> None:
    flood = b"GET /health HTTP/1.1\r\n" + b"x: " + b"y" * 200_000
    assert raw(client, flood).startswith(b"HTTP/1.1 431 ")
    assert raw(client, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert client.get("/health").status == 200


def test_a_body_that_is_too_long_is_not_read(client: Client) -> None:
    head = b"POST /embed HTTP/1.1\r\nauthorization: Bearer first\r\nconnection: close\r\n"
    answer = raw(client, head + b"content-length: 99999999999\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"99999999999 bytes" in answer


# --- the end


def test_the_end_waits_for_what_runs(minilm: Path, runs: Runs, expected: dict[str, Any]) -> None:
    settings: Settings = settings_for(f"minilm={minilm}")
    with serving(settings) as (client, server):
        first = runs.hold(lambda: embed(client, TEXTS[0]))
        second = gather(client, server.service.registry.first().queue, [(TEXTS[1],)])[0]
        server.should_exit = True
        wait_until(lambda: not server.servers[0].is_serving())
        runs.release()
        check(first.result(SECONDS), expected, TEXTS[0])
        check(second.result(SECONDS), expected, TEXTS[1])
    with pytest.raises(ConnectionRefusedError):
        client.get("/health")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is that of glibc")
def test_freed_memory_stays_until_it_is_given_back() -> None:
    """Pages of a request are there for the next one, by the system's count of those it makes."""
    script = (
        "import resource\n"
        "from packhorse.serve.models.memory import give_back, keep_freed, share_arenas\n"
        "def pages():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    bytearray(8 << 20)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "share_arenas()\n"
        "keep_freed()\n"
        "found = [pages(), pages(), give_back(), pages()]\n"
        "print(*found)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    first, second, _, last = done.stdout.split()
    assert min(int(first), int(last)) > 1000
    assert int(second) < 100
