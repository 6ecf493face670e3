"""Threads that do what one request needs of a text beside the event loop: a prompt is written by a
chat template and tokenized, a grammar compiled."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from packhorse.serve.errors import ServeError
from packhorse.serve.models.queued_request import Waiting, finish_soon
from packhorse.serve.models.tokenizing import as_served
from packhorse.text.giving_up import giving_up

_BYTES_PER_S = 1e6  # bytes of requests on one thread, until the first ones have been measured
_LEARN = 0.1  # weight of one request in the pace
_LEAST_S = 0.01  # faster calls say nothing about the pace


class Call(Waiting):
    """A function to be called on a thread, and what it gave.

    cost  bytes of the request, by which its time is estimated
    """

    __slots__ = ("cost", "find", "result")

    def __init__(self, find: Callable[[], Any], cost: int, deadline: float) -> None:
        super().__init__(deadline)
        self.find: Callable[[], Any] | None = find
        self.cost = cost
        self.result: Any = None


class Threads:
    """Runs calls in the order in which they come. What nobody waits for any more is not begun, and
    what has begun ends at its next checkpoint.

    max_wait_s  calls that would wait longer for a thread are refused, by the pace of late
    """

    def __init__(self, count: int, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._cost = 0  # cost of the calls that wait, and of those that run
        self._throughput = _BYTES_PER_S
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"packhorse-text-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, find: Callable[[], Any], cost: int, deadline: float) -> Call:
        """Queues a call; the event loop then waits for it. Raises ServeError ("overloaded")."""
        with self._changed:
            wait_s = self._cost / (self._throughput * len(self._threads))
            if wait_s > self._max_wait_s:
                raise ServeError(
                    "overloaded",
                    f"the server is overloaded: {len(self._calls)} texts wait to be tokenized, "
                    f"about {wait_s:.1f} s",
                    retry_after=max(1, math.ceil(wait_s)),
                )
            call = Call(find, cost, deadline)
            self._cost += cost
            self._calls.append(call)
            self._changed.notify()
        return call

    def cancel(self, call: Call) -> None:
        """Nobody waits for a call any more. Harmless when it has ended."""
        with self._changed:
            call.cancelled = True
            if call in self._calls:
                self._calls.remove(call)
                self._cost -= call.cost

    def close(self) -> None:
        """Ends the threads, once all that was submitted has run."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Runs the next call. The frame is its own, so that a thread that waits holds nothing of
        the last call."""
        with self._changed:
            while not self._calls:
                if self._closed:
                    return False
                self._changed.wait()
            call = self._calls.popleft()
        self._call(call)
        finish_soon([call])
        return True

    def _call(self, call: Call) -> None:
        begin = time.monotonic()
        find, call.find = call.find, None
        assert find is not None
        try:
            if call.given_up:
                call.fail(call.late)
            else:
                with giving_up(lambda: call.given_up):
                    call.result = find()
        except Exception as error:
            call.fail(as_served(error))
        seconds = time.monotonic() - begin
        with self._changed:
            self._cost -= call.cost
            if seconds > _LEAST_S and call.error is None:
                self._throughput += _LEARN * (call.cost / seconds - self._throughput)
