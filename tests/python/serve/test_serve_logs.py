"""`packhorse serve`: a log that nobody reads keeps nobody waiting."""

from __future__ import annotations

import json
import logging
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN
from packhorse import progress_bar
from packhorse.serve.observability import log_writer
from packhorse.serve.observability.logs import dropped_lines, log, to_stderr
from serve_room import PACKAGES, SECONDS, serving, settings_for, wait_until
from tiny_tokenizer import with_tokenizer

for package in PACKAGES:
    pytest.importorskip(package)


def test_lines_that_nobody_takes_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(log_writer, "_MOST_LINES", 100)
    os.set_blocking(writer, False)
    full = 0
    with suppress(BlockingIOError):
        while True:
            full += os.write(writer, b"\n" * 1024)
    os.set_blocking(writer, True)
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as lines:
        monkeypatch.setattr(sys, "stderr", stream)
        with to_stderr("info", "json"):
            for number in range(3000):
                log(logging.INFO, "line", number=number)
            dropped = dropped_lines()
            assert dropped in (2899, 2900)
            assert lines.read(full) == "\n" * full
            found = [json.loads(lines.readline()) for _ in range(3000 - dropped)]
            numbers = [line["number"] for line in found]
            assert numbers == sorted(set(numbers))
            assert numbers[:100] == list(range(100))
            told = json.loads(lines.readline())
            assert (told["message"], told["level"]) == (
                "lines were dropped that nobody read",
                "warning",
            )
            assert told["lines"] == dropped
            log(logging.INFO, "again")
            assert json.loads(lines.readline())["message"] == "again"
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn("of another package", stacklevel=1)
            assert "of another package" in json.loads(lines.readline())["message"]
    assert dropped_lines() == 0


def test_the_last_lines_are_written(capfd: pytest.CaptureFixture[str]) -> None:
    with to_stderr("info", "text"):
        for number in range(500):
            log(logging.INFO, "line", number=number)
    assert capfd.readouterr().err.count("\n") == 500


def shown_on(terminal: bool, style: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a log of this style writes to a terminal or a pipe."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        with to_stderr("info", style):
            log(logging.INFO, "loaded", model="m", memory_bytes=92_134_000, devices=["cpu"])
            log(logging.INFO, "request", model="", source="a folder")
        found = b""
        while found.count(b"\n") < 2:  # a terminal gives one line at a time
            found += os.read(reader, 1000)
    os.close(reader)
    return found.decode().splitlines()


@pytest.mark.parametrize(
    ("terminal", "style", "people"),
    [
        (True, "auto", True),
        (False, "auto", False),
        (True, "json", False),
        (False, "text", True),
    ],
)
def test_lines_for_people_are_written_to_terminals(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, style: str, people: bool
) -> None:
    loaded, request = shown_on(terminal, style, monkeypatch)
    if people:
        assert loaded.endswith(" info    loaded model=m memory=92.1MB devices=cpu")
        assert request.endswith(" info    request source='a folder'")
    else:
        assert json.loads(loaded)["memory_bytes"] == 92_134_000
        assert json.loads(request)["model"] == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(GOLDEN / "bert-sequence", tmp_path_factory.mktemp("models") / "m")


def test_a_line_for_each_model_and_the_address(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "packhorse.serve"),
        serving(settings_for(f"a={folder}", f"b={folder}", log_level="info")) as (_, server),
    ):
        address, planned = server.address, server.service.registry.named("a").memory_bytes
    told = [(one.getMessage(), one.__dict__["fields"]) for one in caplog.records]
    assert [message for message, _ in told[:5]] == [*2 * ["loading", "loaded"], "serving"]
    assert told[0][1] == {"model": "a", "source": str(folder)}
    loaded = told[1][1]
    assert 0 < loaded.pop("seconds") < SECONDS
    assert loaded == {
        "model": "a",
        "source": str(folder),
        "dtype": "float32",
        "devices": ["cpu"],
        "memory_bytes": planned,
    }
    assert told[4][1] == {"models": ["a", "b"], "address": address, "page": f"{address}/"}


def test_a_bar_of_loading_is_not_in_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "_LONG_S", 0.0)  # seconds until a bar is shown
    settings = settings_for(f"a={folder}", log_level="info", log_format="json")
    with to_stderr("info", "json"), serving(settings):
        pass
    lines = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    assert lines[:3] == ["loading", "loaded", "serving"]


@pytest.mark.parametrize(
    ("keys", "client"), [((), "127.0.0.1"), (("a",), "127.0.0.1"), (("b", "a"), "key 1")]
)
def test_clients_are_addresses_or_one_of_several_keys(
    folder: Path, caplog: pytest.LogCaptureFixture, keys: tuple[str, ...], client: str
) -> None:
    with (
        caplog.at_level(logging.INFO, "packhorse.serve"),
        serving(settings_for(f"a={folder}", api_key=keys)) as (asks, _),
    ):
        asks.headers["Authorization"] = "Bearer a"
        assert asks.get("/models").status == 200
    told = [one.__dict__["fields"] for one in caplog.records if one.getMessage() == "request"]
    assert [one["client"] for one in told] == [client]


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "api_key": ("secret",)}, False),
        ({"host": "127.0.0.1"}, False),
        ({"host": "localhost"}, False),
    ],
)
def test_a_server_that_all_may_use_is_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], warned: bool
) -> None:
    with (
        caplog.at_level(logging.INFO, "packhorse.serve"),
        serving(settings_for(f"a={folder}", **given)),
    ):
        pass
    warnings = [one for one in caplog.records if one.levelname == "WARNING"]
    assert [("API key" in one.getMessage()) for one in warnings] == [True] * warned
    serving_line = next(one for one in caplog.records if one.getMessage() == "serving")
    assert serving_line.__dict__["fields"]["page"].startswith("http://127.0.0.1:")


def test_a_reader_that_stops_does_not_stop_the_server(folder: Path) -> None:
    command = [sys.executable, "-m", "packhorse.cli", "serve", f"m={folder}"]
    environment = {**os.environ, "PACKHORSE_PORT": "0", "PACKHORSE_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, b"")
            first = next(line for line in map(json.loads, lines) if line["message"] == "serving")
            host, _, port = first["address"].removeprefix("http://").rpartition(":")
            get = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
            for _ in range(3):
                with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
                    connection.sendall(get * 500)
                    found = b""
                    while found.count(b"HTTP/1.1 200 ") < 500:
                        found += connection.recv(1 << 20)
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: process.poll() is not None)
            assert time.monotonic() - begin < 5
            assert process.returncode == 0
        finally:
            process.kill()
