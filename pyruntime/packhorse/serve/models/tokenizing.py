"""Texts to tokens, on threads beside the event loop and the device.

A thread that is free takes all requests that wait for the same task and tokenizes them in one call,
so that what one request costs falls as more of them come.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from packhorse.serve.errors import ServeError
from packhorse.serve.models.queued_request import QueuedRequest, finish_soon
from packhorse.text.giving_up import GaveUpError, giving_up
from packhorse.text.parts import Request
from packhorse.text.runner import Task

_MOST_ITEMS = 256  # items in one call of the tokenizer


class TokenizingTask(NamedTuple):
    """Items of a request to be made tokens for a task.

    put        takes the result
    by_itself  true: it is never prepared in one call with others of the task
    """

    work: QueuedRequest
    task: Task[Any, Any, Any]
    items: list[Any]
    put: Callable[[QueuedRequest, Request, Any], None]
    by_itself: bool = False


class TokenizerPool:
    """Threads that prepare jobs. Jobs of one task are prepared together, but for those that say
    otherwise. `what`: name of the threads."""

    def __init__(self, threads: int, what: str = "tokenizer") -> None:
        self._changed = threading.Condition()
        self._jobs: deque[TokenizingTask] = deque()
        self._fresh: list[TokenizingTask] = []  # jobs of this turn of the event loop
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"packhorse-{what}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: TokenizingTask) -> None:
        """Adds a job, on the event loop. All jobs of one turn of it are handed over at once: to
        wake a thread costs more than most other steps of a request."""
        if not self._fresh:
            job.work.loop.call_soon(self._hand_over)
        self._fresh.append(job)

    def _hand_over(self) -> None:
        fresh, self._fresh = self._fresh, []
        with self._changed:
            self._jobs.extend(fresh)
            self._changed.notify(len(fresh))

    def close(self) -> None:
        """Ends the threads, after the jobs that were submitted."""
        self._hand_over()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _take(self) -> list[TokenizingTask] | None:
        """Jobs of one task, the oldest first."""
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._changed.wait()
            jobs = [self._jobs.popleft()]
            count = len(jobs[0].items)
            while self._jobs and self._jobs[0].task is jobs[0].task and not jobs[0].by_itself:
                count += len(self._jobs[0].items)
                if count > _MOST_ITEMS:
                    break
                jobs.append(self._jobs.popleft())
            return jobs

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Runs the next jobs. The frame is its own, so that a thread that waits holds nothing of
        the last ones."""
        jobs = self._take()
        if jobs is None:
            return False
        finish_soon(run_tasks([job for job in jobs if not job.work.cancelled]))
        return True


def run_tasks(jobs: Sequence[TokenizingTask]) -> list[QueuedRequest]:
    """Prepares jobs of one task; gives the work of those that failed."""
    failed = []
    for job, prepared in _prepare(jobs):
        try:
            if isinstance(prepared, Exception):
                raise prepared
            job.put(job.work, *prepared)
        except Exception as error:
            job.work.fail(as_served(error))
            failed.append(job.work)
    return failed


Prepared = tuple[Request, Any] | Exception


def _prepare(jobs: Sequence[TokenizingTask]) -> list[tuple[TokenizingTask, Prepared]]:
    begin = time.monotonic()
    if len(jobs) > 1:
        try:
            found = _together(jobs)
        except Exception:  # one of the jobs has failed: each is prepared by itself
            found = [_alone(job) for job in jobs]
    else:
        found = [_alone(job) for job in jobs]
    seconds = time.monotonic() - begin
    for job in jobs:
        job.work.tokenize_s = max(job.work.tokenize_s, seconds)
    return list(zip(jobs, found, strict=True))


def _alone(job: TokenizingTask) -> Prepared:
    try:
        with giving_up(lambda: job.work.given_up):
            return job.task.prepare(job.items, 0)
    except Exception as error:
        return error


def _together(jobs: Sequence[TokenizingTask]) -> list[Prepared]:
    with giving_up(lambda: all(job.work.given_up for job in jobs)):
        request, kept = jobs[0].task.prepare([item for job in jobs for item in job.items], 0)
    if len(request.ids) != sum(len(job.items) for job in jobs):  # texts that were cut into windows
        return [_alone(job) for job in jobs]
    found: list[Prepared] = []
    begin = 0
    for job in jobs:
        which = slice(begin, begin + len(job.items))
        # A task keeps nothing, or something for each item.
        found.append((request.part(which), None if kept is None else kept[which]))
        begin = which.stop
    return found


def as_served(error: Exception) -> Exception:
    """The error that a client is told for an error of a task."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, GaveUpError):
        return ServeError("timeout", "the input was not read in time")
    if isinstance(error, ValueError):
        message = str(error)
        if "max_length is" in message:
            return ServeError("too_long", message)
        if "at most" in message and "windows" in message:
            return ServeError("too_large", message)
        lone = "lone surrogate" in message
        return ServeError("tokenizer" if lone else "validation", message)
    failure = ServeError("internal", f"the input could not be read: {type(error).__name__}")
    failure.__cause__ = error
    return failure
