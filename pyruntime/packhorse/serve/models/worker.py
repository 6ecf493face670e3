"""The threads that run a model: each takes a batch from the queue, runs it, and takes the next."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from packhorse.serve.errors import ServeError
from packhorse.serve.models.queue import Chosen, TokenQueue
from packhorse.serve.models.queued_request import QueuedRequest, finish_soon
from packhorse.serve.observability.logs import log
from packhorse.text.parts import PartRunner

Ran = Callable[[int, int, float], object]  # (tokens, sequences, seconds) of a batch


class Worker(threading.Thread):
    """Runs what is in the queue on one session until the queue is closed and empty; `ran` is called
    after each batch. What fails on that session runs on the `others`, if there are any, so that a
    device that is broken fails no request."""

    def __init__(
        self,
        name: str,
        queue: TokenQueue,
        runner: PartRunner,
        ran: Ran,
        others: Sequence[PartRunner] = (),
    ) -> None:
        super().__init__(name=f"packhorse-{name}", daemon=True)
        self._queue = queue
        self._runner = runner
        self._ran = ran
        self._others = tuple(others)

    def run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Runs the next batch. The frame is its own, so that a thread that waits holds nothing of
        the last one."""
        found = self._queue.take(self._runner)
        if found is None:
            return False
        chosen, late = found
        seconds = self._run_batch(chosen) if chosen else 0.0
        done = [one.work for one in chosen if one.work.left == 0 or one.work.error is not None]
        finish_soon([*late, *dict.fromkeys(done)])
        if chosen:  # while the event loop wakes up
            tokens = sum(part.size[0] for _, part in chosen)
            self._queue.end(self._runner, tokens, seconds)
            self._ran(tokens, sum(part.size[1] for _, part in chosen), seconds)
        return True

    def _run_batch(self, chosen: Sequence[Chosen]) -> float:
        """Gives the seconds that it took."""
        begin = time.monotonic()
        try:
            self._runner.run([one.part for one in chosen])
        except Exception as error:
            self._run_one_by_one(chosen, error)
        seconds = time.monotonic() - begin
        works: dict[QueuedRequest, None] = {}
        for work, _ in chosen:
            work.left -= 1
            works[work] = None
        for work in works:
            work.run_s += seconds
        return seconds

    def _run_one_by_one(self, chosen: Sequence[Chosen], error: Exception) -> None:
        """Runs each part by itself after a batch failed, so that only those fail that must."""
        runners = [*([self._runner] if len(chosen) > 1 else []), *self._others]
        helped = 0
        for work, part in chosen:
            if work.error is not None:
                continue
            failed: Exception | None = error
            for runner in runners:
                try:
                    runner.run([part])
                except Exception as of_part:
                    failed = of_part
                else:
                    helped += runner is not self._runner
                    failed = None
                    break
            if failed is not None:
                failure = ServeError("backend", f"the model failed: {failed}")
                failure.__cause__ = failed
                self._queue.cancel(work)
                work.fail(failure)
        if helped:
            log(logging.ERROR, "a replica failed, others ran its batch", error, replica=self.name)
