"""A request on its way: from the socket to the tokenizer, through the queue, and back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from packhorse.result import RunResult
from packhorse.serve.errors import ClientGoneError, ServeError
from packhorse.text.parts import Part

_LOOK_S = 0.1  # seconds between two looks at deadlines: an answer may be so much later


class Waiting:
    """A result that a request waits for: a future, and why it may fail.

    The event loop makes it and waits for `future`. Threads tell the event loop by `finish_soon`
    that it has come.

    deadline  of `time.monotonic`, after which nobody waits for it any more
    """

    __slots__ = ("cancelled", "deadline", "error", "future", "loop", "submitted_at")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.cancelled = False
        self.error: Exception | None = None
        self.submitted_at = time.monotonic()

    def fail(self, error: Exception) -> None:
        """May be called by any thread, before `finish_soon`."""
        if self.error is None:
            self.error = error
        self.cancelled = True

    def finish(self) -> None:
        """Ends the waiting; on the event loop."""
        if not self.future.done():
            if self.error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(self.error)

    def leave(self) -> None:
        """Nobody waits for it any more; on the event loop."""
        self.fail(ClientGoneError())
        self.finish()

    @property
    def given_up(self) -> bool:
        """True where it is cancelled or late; asked by any thread."""
        return self.cancelled or time.monotonic() >= self.deadline

    @property
    def late(self) -> ServeError:
        waited = time.monotonic() - self.submitted_at
        return ServeError("timeout", f"the request was not answered in {waited:.1f} s")


class QueuedRequest(Waiting):
    """Sequences that one request has one model run. Threads that tokenize and threads that
    run the model fill it in.

    client      whose turn it takes
    tokens      how many tokens it counts for in the queue: an estimate until it is tokenized
    characters  of its texts
    """

    __slots__ = (
        "admitted",
        "characters",
        "client",
        "kept",
        "left",
        "numbers",
        "parts",
        "queued_at",
        "result",
        "run_s",
        "started_at",
        "tokenize_s",
        "tokens",
        "waiting_tokens",
    )

    def __init__(self, client: str, deadline: float, tokens: int, characters: int = 0) -> None:
        super().__init__(deadline)
        self.client = client
        self.tokens = tokens
        self.characters = characters
        self.waiting_tokens = 0  # those of `tokens` that no batch has taken yet
        self.admitted = False  # and waiting: no batch has taken any of it
        self.result: RunResult | None = None
        self.kept: Any = None  # given to `finish` of the task with the result
        self.parts: deque[Part] = deque()
        self.numbers = 0  # numbers in the result
        self.left = 0  # parts that have not run
        self.queued_at = self.started_at = self.submitted_at
        self.tokenize_s = self.run_s = 0.0

    @property
    def queue_s(self) -> float:
        """Seconds that it waited between the tokenizer and its first batch."""
        return max(0.0, self.started_at - self.queued_at)


class Deadlines:
    """QueuedRequest that somebody waits for, looked through now and then for what has become late:
    a timer for each would cost more than all else that waiting does. On the event loop."""

    def __init__(self) -> None:
        self._works: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, work: Waiting) -> None:
        self._works.add(work)
        if self._timer is None:
            self._timer = work.loop.call_later(_LOOK_S, self._look, work.loop)

    def discard(self, work: Waiting) -> None:
        self._works.discard(work)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        for work in [work for work in self._works if now >= work.deadline]:
            work.fail(work.late)
            work.finish()
        self._timer = loop.call_later(_LOOK_S, self._look, loop) if self._works else None


def finish_soon(works: Sequence[Waiting]) -> None:
    """Has the event loop finish all of them, from any thread."""
    if not works:
        return
    with suppress(RuntimeError):  # the event loop is closed: nobody waits
        works[0].loop.call_soon_threadsafe(_finish_all, works)


def _finish_all(works: Sequence[Waiting]) -> None:
    for work in works:
        work.finish()
