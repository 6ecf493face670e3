"""Queue of the requests for one model, in the order in which they are to run.

Start-time fair queueing (Goyal, Vin, Chen, 1996): every client has a virtual time, which counts the
tokens that were run for it, and whose time is least comes next. A client that comes back begins at
the present, so that nobody saves up turns.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import deque
from typing import NamedTuple

from packhorse.serve.errors import ServeError
from packhorse.serve.models.queued_request import QueuedRequest
from packhorse.serve.models.throughput import ThroughputEstimator
from packhorse.text.parts import Part, PartRunner, sum_sizes


class Chosen(NamedTuple):
    """A part that runs next, and the request that it belongs to."""

    work: QueuedRequest
    part: Part


class _Client:
    """Waiting requests of one client, the oldest first."""

    def __init__(self, name: str, virtual: float) -> None:
        self.name = name
        self.virtual = virtual
        self.works: deque[QueuedRequest] = deque()


class TokenQueue:
    """Any number of threads put work in and take batches out.

    max_tokens  tokens that may wait
    max_wait_s  how long what comes may have to wait for its turn, by the pace of late
    """

    def __init__(self, throughput: ThroughputEstimator, max_tokens: int, max_wait_s: float) -> None:
        self.throughput = throughput
        self._max_tokens = max_tokens
        self._max_wait_s = max_wait_s
        self._changed = threading.Condition()
        self._clients: dict[str, _Client] = {}
        self._order: list[tuple[float, int, _Client]] = []  # a heap
        self._count = 0
        self._now = 0.0
        self._closed = False
        self._running: dict[PartRunner, tuple[int, float]] = {}  # tokens, since when
        self.tokens = 0  # waiting ones, those that are still to be tokenized included
        self.requests = 0  # admitted ones that have not begun to run

    def admit(self, work: QueuedRequest) -> None:
        """Makes room for work of about `work.tokens`. Raises ServeError ("overloaded")."""
        with self._changed:
            if self._closed:
                raise ServeError("unhealthy", "the model is being unloaded")
            tokens = work.tokens
            wait_s = self._wait_s()
            if wait_s > self._max_wait_s or 0 < self.tokens > self._max_tokens - tokens:
                raise ServeError(
                    "overloaded",
                    f"the model is overloaded: {self.tokens} tokens wait, about {wait_s:.1f} s",
                    retry_after=max(1, math.ceil(wait_s)),
                )
            self.tokens += tokens
            self.requests += 1
            work.waiting_tokens = tokens
            work.admitted = True

    def _wait_s(self) -> float:
        """Seconds until a request that comes now has its turn: for all that runs and waits before
        it."""
        now = time.monotonic()
        running = [(tokens, now - since) for tokens, since in self._running.values()]
        return self.throughput.wait_s(self.tokens, running)

    @property
    def full(self) -> bool:
        """True if a request that comes now would be refused."""
        with self._changed:
            return self._wait_s() > self._max_wait_s or self.tokens >= self._max_tokens

    def put(self, work: QueuedRequest, parts: list[Part]) -> None:
        """QueuedRequest that was admitted, with its parts."""
        with self._changed:
            if work.cancelled:
                self._forget(work)
                return
            tokens = sum(part.size[0] for part in parts)
            self.tokens += tokens - work.waiting_tokens
            work.tokens = work.waiting_tokens = tokens
            work.parts.extend(parts)
            work.left = len(parts)
            work.queued_at = time.monotonic()
            client = self._clients.get(work.client)
            if client is None:
                client = self._clients[work.client] = _Client(work.client, self._now)
                self._push(client)
            client.works.append(work)
            self._changed.notify()

    def cancel(self, work: QueuedRequest) -> None:
        """Removes the parts that have not run. Harmless when the request has ended."""
        with self._changed:
            work.cancelled = True
            self._forget(work)

    def _forget(self, work: QueuedRequest) -> None:
        self._begin(work)
        self.tokens -= work.waiting_tokens
        work.waiting_tokens = 0
        work.parts.clear()

    def _begin(self, work: QueuedRequest) -> None:
        if work.admitted:
            work.admitted = False
            self.requests -= 1
            if self._closed:
                self._changed.notify_all()

    def _push(self, client: _Client) -> None:
        self._count += 1
        heapq.heappush(self._order, (client.virtual, self._count, client))

    def take(self, runner: PartRunner) -> tuple[list[Chosen], list[QueuedRequest]] | None:
        """Waits for work, and gives (what the next batch runs, what has come too late).

        A batch has no more tokens than the pace allows, unless one part alone has more. It counts
        as running until `end` is called with the same runner. None: the queue is closed, and
        nothing waits any more.
        """
        with self._changed:
            while not self._order:
                if self._closed and not self.requests:
                    return None
                self._changed.wait()
            found = self._choose(runner, self.throughput.batch_tokens_of(self.tokens))
            if found[0]:
                tokens = sum(one.part.size[0] for one in found[0])
                self._running[runner] = tokens, time.monotonic()
            return found

    def end(self, runner: PartRunner, tokens: int, seconds: float) -> None:
        """The batch that a runner took has run: so many tokens in so many seconds."""
        with self._changed:
            del self._running[runner]
            self.throughput.note(tokens, seconds)

    def _choose(self, runner: PartRunner, budget: int) -> tuple[list[Chosen], list[QueuedRequest]]:
        chosen: list[Chosen] = []
        late: list[QueuedRequest] = []
        passed: list[_Client] = []  # clients whose next part is of another kind
        size = (0, 0, 0)
        now = time.monotonic()
        while self._order:
            _, _, client = self._order[0]
            work = self._first(client, now, late)
            if work is None:
                heapq.heappop(self._order)
                del self._clients[client.name]
                continue
            part = work.parts[0]
            total = sum_sizes(size, part.size)
            if chosen and part.kind != chosen[0].part.kind:
                heapq.heappop(self._order)
                passed.append(client)
                continue
            if chosen and (total[0] > budget or not runner.fits(total)):
                break
            heapq.heappop(self._order)
            self._now = max(self._now, client.virtual)
            client.virtual += part.size[0]
            self._push(client)
            self._take_part(work, now)
            chosen.append(Chosen(work, part))
            size = total
        for client in passed:
            self._push(client)
        return chosen, late

    def _first(
        self, client: _Client, now: float, late: list[QueuedRequest]
    ) -> QueuedRequest | None:
        """The work of a client that is next; what is done, cancelled or late is taken out."""
        while client.works:
            work = client.works[0]
            if work.parts and now < work.deadline:
                return work
            if work.parts:
                self._forget(work)
                work.fail(work.late)
                late.append(work)
            client.works.popleft()
        return None

    def _take_part(self, work: QueuedRequest, now: float) -> None:
        if work.admitted:
            work.started_at = now
            self._begin(work)
        part = work.parts.popleft()
        self.tokens -= part.size[0]
        work.waiting_tokens -= part.size[0]

    def close(self) -> None:
        """Admits nothing any more. Requests that were admitted still run."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
