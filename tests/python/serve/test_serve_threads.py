"""Threads that tokenize for requests: what is too much, late or not wanted any more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from packhorse.serve.errors import ClientGoneError, ServeError
from packhorse.serve.models.threads import Threads
from packhorse.text.giving_up import GaveUpError, checkpoint

LATER = 1e9


@pytest.fixture
def threads() -> Iterator[Threads]:
    found = Threads(1, max_wait_s=2.0)
    yield found
    found.close()


def test_results_and_errors(threads: Threads) -> None:
    async def ask() -> Any:
        good = threads.submit(lambda: 7, 10, LATER)
        bad = threads.submit(lambda: int("x"), 10, LATER)
        await good.future
        with pytest.raises(ServeError, match="invalid literal"):
            await bad.future
        return good.result

    assert asyncio.run(ask()) == 7


def test_more_than_can_be_done_in_time_is_refused(threads: Threads) -> None:
    async def ask() -> None:
        busy = threading.Event()
        first = threads.submit(busy.wait, 3_000_000, LATER)  # three seconds by the first pace
        with pytest.raises(ServeError, match="overloaded") as raised:
            threads.submit(lambda: 1, 10, LATER)
        assert raised.value.retry_after == 3
        busy.set()
        await first.future
        await asyncio.wait_for(threads.submit(lambda: 1, 10, LATER).future, 60)

    asyncio.run(ask())


def test_what_nobody_waits_for_is_not_begun(threads: Threads) -> None:
    begun: list[str] = []

    async def ask() -> None:
        busy = threading.Event()
        first = threads.submit(busy.wait, 1, LATER)
        gone = threads.submit(lambda: begun.append("gone"), 1, LATER)
        left = threads.submit(lambda: begun.append("left"), 1, LATER)
        late = threads.submit(lambda: begun.append("late"), 1, time.monotonic() - 1)
        last = threads.submit(lambda: begun.append("last"), 1, LATER)
        threads.cancel(gone)
        left.leave()
        busy.set()
        await first.future
        with pytest.raises(ClientGoneError):
            await left.future
        with pytest.raises(ServeError, match="not answered in"):
            await late.future
        await last.future

    asyncio.run(ask())
    assert begun == ["last"]


def test_what_has_begun_ends_at_its_next_checkpoint(threads: Threads) -> None:
    ended: list[type[BaseException]] = []
    begun = threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                checkpoint()
        except GaveUpError as error:
            ended.append(type(error))
            raise

    async def ask() -> None:
        call = threads.submit(work, 1, LATER)
        await asyncio.to_thread(begun.wait)
        threads.cancel(call)
        with pytest.raises(ServeError, match="in time"):
            await call.future

    asyncio.run(ask())
    assert ended == [GaveUpError]
