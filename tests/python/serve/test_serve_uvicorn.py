"""The server's connection uses members of uvicorn and uvloop that are no public interface, by name.
An upper bound in pyproject.toml keeps other versions out until this test has passed with them."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("uvloop")

import uvicorn
import uvloop
from packhorse.serve import server
from packhorse.serve.http import connection
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

PROTOCOL = {
    *("_start_asgi_task", "cycle", "data_received", "flow", "loop", "on_body", "on_header"),
    *("on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete"),
    *("connection_lost", "connection_made", "parser", "pipeline", "scheme", "scope"),
    *("server_state", "transport", "shutdown"),
}
CYCLE = {
    *("body", "default_headers", "disconnected", "keep_alive", "message_event", "more_body"),
    *("on_response", "response_complete", "response_started", "scope", "waiting_for_100_continue"),
}
FLOW = {"pause_reading", "resume_reading", "write_paused"}
STATE = {"tasks", "total_requests"}
SERVER = {"force_exit", "handle_exit", "lifespan", "run", "server_state", "servers", "shutdown"} | {
    "startup"
}


def members(module: Any, *owners: str) -> set[str]:
    """Every member that a module reads, writes or overrides of what it calls by these names."""

    def found(tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "self" in owners:
                yield node.name
            if isinstance(node, ast.Attribute):
                owner: Any = node.value
                owner = owner.func if isinstance(owner, ast.Call) else owner  # super()
                if getattr(owner, "attr", getattr(owner, "id", None)) in owners:
                    yield node.attr

    return set(found(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))))


async def application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


@pytest.fixture
def protocol() -> Iterator[HttpToolsProtocol]:
    loop = asyncio.new_event_loop()
    config = uvicorn.Config(application, log_config=None)
    yield HttpToolsProtocol(config, ServerState(), {}, loop)
    loop.close()


def test_private_members_are_there_and_no_others_are_used(protocol: HttpToolsProtocol) -> None:
    own = set(vars(connection.Connection)) - PROTOCOL
    assert not own & set(dir(HttpToolsProtocol)) - {"__init__", "__module__", "__doc__"}
    names = ("self", "super", "connection", "_connection")
    assert members(connection, *names) & {n for n in dir(protocol) if n[:2] != "__"} == PROTOCOL
    nothing: Any = None
    cycle = RequestResponseCycle(
        *(nothing,) * 5, access_log=False, default_headers=[], message_event=nothing,
        expect_100_continue=False, keep_alive=True, on_response=nothing,
    )  # fmt: skip
    assert members(connection, "cycle", "_cycle", "_running") == CYCLE <= set(dir(cycle))
    assert members(connection, "flow") == FLOW <= set(dir(FlowControl(nothing)))
    state = members(connection, "server_state") | members(server, "state") - {"service"}
    assert state == STATE <= set(dir(ServerState()))
    assert STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


def test_members_of_the_server() -> None:
    made = uvicorn.Server(uvicorn.Config(application, log_config=None))
    there = {n for n in dir(made) if n[:2] != "__"} | {"lifespan", "servers"}  # made while it runs
    assert members(server, "self", "super") & there == SERVER


def test_the_layer_of_tls() -> None:
    assert {"connection_made", "connection_lost"} <= set(dir(uvloop.loop.SSLProtocol))
