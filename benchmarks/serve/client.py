"""A load generator in a process of its own: one JSON job on stdin, one JSON result on stdout.

It speaks HTTP/1.1 over connections that are kept, on the loopback interface alone, and does as
little as it can for each request, because its time is the server's time where both share the cores.

Open loop (`rate`): requests come at random times (Poisson), whether or not those before have been
answered. One that finds all connections busy waits for a free one, and its latency counts from when
it came (with `from_sent`, from when it was sent: what the server alone is answerable for).
Closed loop (`rate` 0): every connection asks again as soon as it has its answer, which
shows what the server can do.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_CONNECTIONS, MOST_RATE, MOST_SECONDS = 4096, 100_000, 3600
_END_S = 60.0  # limit for answers that are missing when the time is over
_DONE = Callable[["Connection", int, float], None]


class Connection(asyncio.Protocol):
    """One request at a time. `done` gets its status (0: the connection was lost) and latency."""

    def __init__(self, done: _DONE, lost: Callable[[Connection], None]) -> None:
        self._done = done
        self._lost = lost
        self._buffer = b""
        self._missing = -1  # bytes of the body; -1: the headers are not complete
        self._status = 0
        self._begin: float | None = None  # when the request came that is being answered
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, message: bytes, begin: float) -> None:
        self._begin = begin
        self.transport.write(message)

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            self._status = int(head[9:12])
            at = head.index(b"content-length:") + 15
            line = head.find(b"\r", at)
            size = int(head[at : line if line > 0 else end])
            self._missing = size - (len(self._buffer) - end - 4)
        else:
            self._missing -= len(data)
        if self._missing <= 0:
            self._end(self._status)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._begin is not None:
            self._end(0)
        self._lost(self)

    def _end(self, status: int) -> None:
        begin, self._begin = self._begin, None
        self._buffer, self._missing = b"", -1
        if begin is not None:
            self._done(self, status, begin)


class Load:
    """One job: (seconds after the beginning, latency in seconds, status) of every request whose
    answer came in the time that is measured."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._messages = [_message(job, body) for body in job["bodies"]]
        self._next = job.get("first", 0)
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._waiting: deque[float] = deque()  # when they came
        self._running = True
        self.answers: list[tuple[float, float, int]] = []
        self.came = 0  # requests that came in the time that is measured
        self.begin = self.end = 0.0

    async def run(self) -> dict[str, Any]:
        job, loop = self._job, asyncio.get_running_loop()
        for _ in range(job["connections"]):
            await self._connect()
        self.begin = time.monotonic() + job["warm"]
        self.end = self.begin + job["seconds"]
        marks: list[dict[str, float]] = []
        for moment in (self.begin, self.end):
            loop.call_later(moment - time.monotonic(), lambda: marks.append(_mark(job["pid"])))
        if job["rate"]:
            await self._arrivals(job["rate"])
        else:
            for connection in list(self._free):
                self._give(connection)
            await asyncio.sleep(self.end - time.monotonic())
        self._running = False
        unsent = len(self._waiting)
        self._waiting.clear()
        while len(self._free) < len(self._all) and time.monotonic() < self.end + _END_S:
            await asyncio.sleep(0.01)
        missing = len(self._all) - len(self._free)
        for connection in list(self._all):
            connection.transport.close()
        used = {name: marks[1][name] - marks[0][name] for name in marks[0]}
        return {
            "answers": self.answers,
            "came": self.came,
            "unsent": unsent,
            "missing": missing,
            "client_cpu_s": used["client_cpu_s"],
            "server_cpu_s": used["server_cpu_s"],
            "seconds": used["at"],
        }

    async def _connect(self) -> None:
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._done, self._lose), "127.0.0.1", self._job["port"]
        )
        self._all.add(made)
        self._free.append(made)

    def _lose(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if self._running:
            asyncio.get_running_loop().create_task(self._connect())

    async def _arrivals(self, rate: float) -> None:
        chance = random.Random(self._job["seed"])
        due = time.monotonic()
        while (now := time.monotonic()) < self.end:
            while due <= now:
                self.came += due >= self.begin
                self._waiting.append(due)
                due += chance.expovariate(rate)
            while self._waiting and self._free:
                self._send(self._free.pop(), self._waiting.popleft())
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _give(self, connection: Connection) -> None:
        """The next request, in closed loop."""
        self._free.remove(connection)
        self._send(connection, time.monotonic())

    def _send(self, connection: Connection, came: float) -> None:
        came = time.monotonic() if self._job["from_sent"] else came
        connection.ask(self._messages[self._next % len(self._messages)], came)
        self._next += 1

    def _done(self, connection: Connection, status: int, came: float) -> None:
        now = time.monotonic()
        if self.begin <= now < self.end:
            self.answers.append((now - self.begin, now - came, status))
        if self._waiting and status:
            self._send(connection, self._waiting.popleft())
        elif self._running and not self._job["rate"] and status:
            self._send(connection, now)
        else:
            self._free.append(connection)


def _message(job: dict[str, Any], body: str) -> bytes:
    data = body.encode()
    return (
        f"POST {job['path']} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    ).encode() + data


def _mark(pid: int) -> dict[str, float]:
    """The clock, and the processor's time that this process and the server have taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return {
        "at": time.monotonic(),
        "client_cpu_s": time.process_time(),
        "server_cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
    }


def main() -> None:
    job = json.load(sys.stdin)
    within = (
        0 < job["connections"] <= MOST_CONNECTIONS
        and 0 <= job["rate"] <= MOST_RATE
        and 0 < job["seconds"] <= MOST_SECONDS
    )
    if not within:
        raise SystemExit("more load than this program makes")
    try:
        import uvloop

        run = uvloop.run
    except ModuleNotFoundError:
        run = asyncio.run
    json.dump(run(Load(job).run()), sys.stdout)


if __name__ == "__main__":
    main()
