"""A server on a port of this machine, in a thread of this process, and a client for it that holds
every answer against the server's own description of its interface."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from checkpoints import GOLDEN
from fake_engine import text_model_of_chance
from packhorse import TextModel
from packhorse.serve import ModelSettings, Settings
from tiny_tokenizer import SPECIAL, make_tokenizer, with_tokenizer

PACKAGES = ("tokenizers", "starlette", "uvicorn", "uvloop", "orjson", "jsonschema")
SECONDS = 60  # until a test that hangs fails
MODELS = {
    "reranker": "bert-reranker",
    "classifier": "bert-sequence",
    "splade": "bert-splade",
    "colbert": "bert-colbert",
    "bge-m3": "bge-m3",
    "tagger": "bert-tokens",
    "filler": "bert-predictions",
}


class Answer(NamedTuple):
    """Answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream that has ended; where they have names, there is no [DONE]."""
        lines = [line for line in self.body.decode().split("\n\n") if line]
        if lines[0].startswith("event: "):
            parts = [line.removeprefix("event: ").split("\ndata: ") for line in lines]
            found = [json.loads(data) for _, data in parts]
            assert [one["type"] for one in found] == [name for name, _ in parts]
            return found
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


class Client:
    """Sends requests to a server, a connection each, and validates the answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.headers: dict[str, str] = {}

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """`body`: bytes as they are, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {**self.headers, **(headers or {})})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        finally:
            connection.close()
        assert "x-request-id" in answer.headers
        validate(method, path, answer)
        return answer

    def get(self, path: str, **options: Any) -> Answer:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> Answer:
        return self.ask("POST", path, body, **options)

    def metric(self, name: str) -> float:
        """The sum of the samples of this name, labels aside."""
        text = self.get("/metrics").body.decode()
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))


def validate(method: str, path: str, answer: Answer) -> None:
    """The answer is one that the description has. Paths that it does not have are left alone."""
    from jsonschema import Draft202012Validator
    from packhorse.serve.openapi import document

    found = document()
    path = path.partition("?")[0]
    if path not in found["paths"]:
        path = re.sub(r"^(/v1)?/models/[^/]+", r"\1/models/{name}", path)
    operation = found["paths"].get(path, {}).get(method.lower())
    if operation is None:
        return
    if path == "/" and method == "GET":
        return  # a file of the page
    described = operation["responses"][str(answer.status)].get("content", {})
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if not described:
        assert answer.body == b""
        return
    assert kind in described, f"{method} {path}: {answer.status} {kind}"

    def check(schema: Any, content: Any) -> None:
        whole = {**schema, "components": found["components"]}
        Draft202012Validator(whole).validate(content)

    if kind == "application/json":
        check(described[kind]["schema"], answer.json)
    elif kind == "text/event-stream":
        data = described[kind]["schema"]["properties"]["data"]
        for event in answer.events:
            if "error" not in event:
                check(data["contentSchema"], event)


@contextmanager
def serving(settings: Settings) -> Iterator[tuple[Client, Any]]:
    """(a client, the `Server`), which serves in a thread of its own until the block ends."""
    from packhorse.serve.server import Server

    server = Server(settings)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            server.serve_until_told()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    if failures:
        raise failures[0]
    try:
        yield Client(int(server.address.rpartition(":")[2])), server
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


def wait_until(condition: Any) -> None:
    """Looks again and again, up to a minute."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen in a minute"
        time.sleep(0.005)


def connect(client: Client, sent: bytes = b"", **options: int) -> socket.socket:
    """A connection of its own, with options of the socket by their names."""
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.settimeout(SECONDS)
    connection.connect(("127.0.0.1", client.port))
    connection.sendall(sent)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes, or has reset, the connection."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def make_models(root: Path) -> dict[str, Path]:
    """Folders of tiny models with tokenizers, by the names that they are served under."""
    found = {}
    for name, golden in MODELS.items():
        found[name] = with_tokenizer(GOLDEN / golden, root / name)
        tokenizer = make_tokenizer()
        tokenizer.add_special_tokens(list(SPECIAL.values()))
        tokenizer.save(str(found[name] / "tokenizer.json"))
    return found


def serve_chance(
    monkeypatch: pytest.MonkeyPatch, **others: Callable[[], TextModel]
) -> list[TextModel]:
    """Has a model of the path "chance" be one that draws tokens (fake_engine.py), and those of
    other names be made by functions. The list has all that are loaded."""
    from packhorse.serve.models import loading

    makers = {"chance": text_model_of_chance, **others}
    load, loaded = TextModel.load, []

    def found(path: Any, *arguments: Any, **options: Any) -> TextModel:
        if path not in makers:
            return load(path, *arguments, **options)
        loaded.append(makers[path]())
        return loaded[-1]

    abilities = loading.abilities

    def able(given: ModelSettings) -> list[str]:
        return ["generate"] if given.path in makers else abilities(given)

    monkeypatch.setattr(TextModel, "load", found)
    monkeypatch.setattr(loading, "abilities", able)
    return loaded


def settings_for(*models: str | ModelSettings, **given: Any) -> Settings:
    """Settings for models, "NAME=PATH" or `ModelSettings`, with quick defaults and nothing of the
    environment."""
    chosen = {"port": 0, "threads": 1, "log_level": "warning", "tokenization_workers": 1}
    return Settings.load(models, environment={}, **{**chosen, **given})
