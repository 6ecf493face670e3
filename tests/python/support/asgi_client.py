"""Runs an ASGI application as a server does: its lifespan, and requests within it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

Application = Callable[..., Awaitable[None]]
Call = tuple[str, str, Any]  # method, path, body (JSON)


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def _ask(app: Application, call: Call) -> Answer:
    method, path, body = call
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    sent: list[Any] = []
    given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    gone = asyncio.Event()

    async def receive() -> Any:
        if given:
            return given.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(one.get("body", b"") for one in sent[1:])
    return Answer(sent[0]["status"], content)


async def _run(app: Application, calls: list[Call]) -> list[Answer]:
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    lifespan = asyncio.create_task(app(scope, inbox.get, outbox.put))
    inbox.put_nowait({"type": "lifespan.startup"})
    begun = await outbox.get()
    assert begun["type"] == "lifespan.startup.complete", begun
    answers = await asyncio.gather(*(_ask(app, call) for call in calls))
    inbox.put_nowait({"type": "lifespan.shutdown"})
    ended = await outbox.get()
    assert ended["type"] == "lifespan.shutdown.complete", ended
    await lifespan
    return answers


def run_asgi(app: Application, *calls: Call) -> list[Answer]:
    """The answers to calls that are made at the same time."""
    return asyncio.run(_run(app, list(calls)))
