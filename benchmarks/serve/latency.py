"""Times another client's waits while one request asks of `packhorse serve` as much as it can.

    python benchmarks/serve/latency.py [--only PATH] [--rounds 3] [--json FILE]

A server of tiny models runs as a process. One client sends the hostile requests of
tests/python/support/hostile_requests.py one after the other; another one, a process of its own,
asks for /health every few milliseconds. Prints a table: of each request its status and time, and
the median and the longest wait of the other client, in that of some rounds in which it was
shortest: other programs of the machine make it longer. The first line is that of a server that has
nothing else to do: what the machine itself makes others wait. Exits with 1 where a wait was longer
than 50 ms and than twice what it was then.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from servers import free_port, running_server

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python" / "support"))
from hostile_requests import hostile_requests, make_hostile_models

ALLOWED_MS = 50.0
IDLE_S = 3.0
PAUSE_S = 0.004


class Row(NamedTuple):
    """Milliseconds that another client waited for its answers during one request."""

    name: str
    status: int
    took_ms: float
    median_ms: float
    longest_ms: float


def probe(port: int, told: Connection) -> None:
    """Asks for /health as another client, until it is told to give the times that it has
    measured."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    waits: list[float] = []
    while True:
        if told.poll(PAUSE_S):
            if told.recv() == "end":
                return
            told.send(waits or [0.0])
            waits = []
        begin = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        waits.append((time.perf_counter() - begin) * 1e3)


def send(port: int, path: str, body: bytes) -> tuple[int, float]:
    """(status, milliseconds)"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    begin = time.perf_counter()
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        while response.read(1 << 20):
            pass
        status = response.status
    except (ConnectionError, http.client.HTTPException):
        status = 0  # closed before all of it was sent
    finally:
        connection.close()
    return status, (time.perf_counter() - begin) * 1e3


def measure(port: int, asked: Any, only: str, rounds: int) -> list[Row]:
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=probe, args=(port, theirs))
    other.start()
    rows = []

    def waits() -> list[float]:
        ours.send("give")
        found: list[float] = ours.recv()
        return found

    try:
        time.sleep(1)
        waits()
        time.sleep(IDLE_S)
        found = waits()
        rows.append(Row("nothing else", 200, 0.0, statistics.median(found), max(found)))
        show(rows[-1])
        for one in asked:
            if only not in one.name:
                continue
            body = one.body()
            tries = []
            for _ in range(rounds):
                waits()
                status, took = send(port, one.path, body)
                found = waits()
                tries.append(Row(one.name, status, took, statistics.median(found), max(found)))
            rows.append(min(tries, key=lambda row: row.longest_ms))
            show(rows[-1])
    finally:
        ours.send("end")
        other.join()
    return rows


def show(row: Row) -> None:
    print(
        f"| {row.name} | {row.status} | {row.took_ms:,.0f} | {row.median_ms:.1f} | "
        f"{row.longest_ms:.0f} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="requests whose name has this in it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = [f"{name}={path}" for name, path in make_hostile_models(Path(folder)).items()]
        port = free_port()
        options = ["--kv-tokens", "8192", "--threads", "1"]
        with running_server("Packhorse", models, port, options):
            print("| request | status | took, ms | /health median, ms | longest, ms |")
            print("|---|---:|---:|---:|---:|")
            rows = measure(port, hostile_requests(), chosen.only, chosen.rounds)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    allowed = max(ALLOWED_MS, 2 * rows[0].longest_ms)
    return int(any(row.longest_ms > allowed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
