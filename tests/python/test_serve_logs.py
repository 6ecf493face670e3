"""`packhorse serve`: a log that nobody reads keeps nobody waiting."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoints import GOLDEN
from packhorse.serve import log_writer
from packhorse.serve.logs import dropped_lines, log, to_stderr
from serve_room import PACKAGES, SECONDS, wait_until
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


def test_a_reader_that_stops_does_not_stop_the_server(tmp_path: Path) -> None:
    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "m")
    command = [sys.executable, "-m", "packhorse.cli", "serve", f"m={folder}"]
    environment = {**os.environ, "PACKHORSE_PORT": "0", "PACKHORSE_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stderr is not None
            first = json.loads(process.stderr.readline())
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
