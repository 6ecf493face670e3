"""`packhorse serve`: whose turn it is, what a batch holds, and what is refused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from packhorse import Session
from packhorse.serve.errors import ServeError
from packhorse.serve.models.queue import TokenQueue
from packhorse.serve.models.queued_request import QueuedRequest
from packhorse.serve.models.throughput import ThroughputEstimator
from packhorse.text.parts import PartRunner, Request

Put = Callable[..., QueuedRequest]


def queue_of(max_tokens: int = 10**6, budget: int = 1024) -> TokenQueue:
    """Whose batches have at most `budget` tokens, and in which so many tokens may wait."""
    return TokenQueue(ThroughputEstimator(1.0, budget), max_tokens, 60)


@pytest.fixture
def runner(session: Session) -> PartRunner:
    """Batches of at most 1024 tokens and 32 sequences."""
    return PartRunner(session)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    found = asyncio.new_event_loop()
    yield found
    found.close()


@pytest.fixture
def put(runner: PartRunner, loop: asyncio.AbstractEventLoop) -> Put:
    """put(queue, client, lengths, output, deadline in seconds, tokens of a part): work with
    sequences of these lengths."""

    def make(
        queue: TokenQueue,
        client: str,
        lengths: list[int],
        output: Any = "embedding",
        within: float = 60.0,
        piece: int | None = None,
    ) -> QueuedRequest:
        async def work() -> QueuedRequest:
            return QueuedRequest(client, time.monotonic() + within, sum(lengths))

        found = loop.run_until_complete(work())
        queue.admit(found)
        ids = [np.ones(length, np.int32) for length in lengths]
        found.result, parts = runner.cut(Request(ids, None, (output,)), piece)
        queue.put(found, parts)
        return found

    return make


def take(queue: TokenQueue, runner: PartRunner, budget: int = 1024) -> list[tuple[str, int]]:
    """(client, tokens) of each part of the next batch, of at most so many tokens."""
    queue.throughput._max_tokens = budget
    found = queue.take(runner)
    assert found is not None
    return [(one.work.client, one.part.size[0]) for one in found[0]]


def test_clients_take_turns_whatever_they_ask_for(runner: PartRunner, put: Put) -> None:
    """By tokens: one client has put a hundred requests before the others come."""
    queue = queue_of()
    for _ in range(100):
        put(queue, "greedy", [10])
    put(queue, "small", [10] * 4, piece=10)
    put(queue, "long", [40])
    first = Counter(client for client, _ in take(queue, runner, 120))
    assert first == {"greedy": 4, "small": 4, "long": 1}
    assert take(queue, runner, 30) == [("greedy", 10)] * 3


def test_turns_are_counted_in_tokens(runner: PartRunner, put: Put) -> None:
    queue = queue_of()
    for _ in range(20):
        put(queue, "short", [10])
        put(queue, "long", [40])
    for _ in range(2):
        assert Counter(client for client, _ in take(queue, runner, 160)) == {"short": 8, "long": 2}


def test_who_comes_back_has_saved_no_turns(runner: PartRunner, put: Put) -> None:
    queue = queue_of()
    put(queue, "a", [100])
    take(queue, runner)
    put(queue, "b", [10] * 30, piece=10)
    take(queue, runner, 100)
    for _ in range(10):
        put(queue, "c", [10])
    assert Counter(client for client, _ in take(queue, runner, 100)) == {"b": 5, "c": 5}


def test_a_batch_is_bounded_by_tokens_and_by_the_plan(runner: PartRunner, put: Put) -> None:
    queue = queue_of()
    for length in (500, 500, 500, 3):
        put(queue, "a", [length])
    assert take(queue, runner) == [("a", 500), ("a", 500)]
    assert take(queue, runner, 100) == [("a", 500)]  # one part runs whatever its size
    assert take(queue, runner) == [("a", 3)]
    for _ in range(40):
        put(queue, "a", [2])
    assert len(take(queue, runner)) == 32  # max_sequences of the plan
    assert len(take(queue, runner)) == 8
    assert (queue.tokens, queue.requests) == (0, 0)


def test_the_pace_bounds_how_long_a_batch_takes(runner: PartRunner, put: Put) -> None:
    pace = ThroughputEstimator(0.1, 500)
    assert pace.batch_tokens == 500  # nothing is known yet
    pace.note(1000, 1.0)
    assert pace.batch_tokens == 100
    assert pace.wait_s(5000) == 5.0
    pace.note(10, 1.0)  # few tokens, and slow
    assert pace.batch_tokens == 100
    pace.note(10, 0.001)  # few tokens, and fast
    assert pace.batch_tokens == 100 * 1010 // 1001
    queue = TokenQueue(pace, 10**6, 60)
    for _ in range(30):
        put(queue, "a", [10])
    assert len(take(queue, runner, 500)) == 10
    for _ in range(100):
        pace.note(3000, 1.0)  # what was long ago counts less
    assert 290 < pace.batch_tokens <= 300
    pace = ThroughputEstimator(0.1, 500)
    pace.note(1000, 1.0)
    waiting = (0, 400, 800, 1600, 10_000)  # where much waits, batches are longer
    assert [pace.batch_tokens_of(tokens) for tokens in waiting] == [100, 100, 200, 400, 400]
    both = ThroughputEstimator(0.1, 500, replicas=2)
    both.note(1000, 1.0)
    assert (both.batch_tokens, both.wait_s(5000)) == (100, 2.5)


def test_the_wait_counts_what_runs_and_the_slowest_pace_of_late() -> None:
    pace = ThroughputEstimator(0.1, 500)
    assert pace.wait_s(1000, [(500, 0.1)]) == 0  # nothing is known yet
    pace.note(1000, 1.0)
    assert pace.wait_s(200, [(100, 0.04)]) == pytest.approx(0.26)
    assert pace.wait_s(200, [(100, 0.1)]) == pytest.approx(0.2)
    assert pace.wait_s(200, [(100, 0.125)]) == pytest.approx(0.25)  # 800 tokens/s, now
    assert pace.wait_s(200, [(100, 9.0)]) == pytest.approx(0.4)  # it stands still: half the pace
    assert pace.wait_s(200, [(10, 0.4)]) == pytest.approx(0.2)  # few tokens say nothing
    pace.note(100, 0.2)  # 500 tokens/s; the mean says 917
    assert pace.wait_s(200) == pytest.approx(0.4)
    pace.note(300, 0.1)
    assert pace.wait_s(200) == pytest.approx(200 * 1.3 / 1400)
    both = ThroughputEstimator(0.1, 500, replicas=2)
    both.note(1000, 1.0)
    assert both.wait_s(200, [(100, 0.02), (60, 0.04)]) == pytest.approx(0.15)


def test_other_outputs_wait_for_a_batch_of_their_own(runner: PartRunner, put: Put) -> None:
    queue = queue_of()
    put(queue, "a", [4])
    put(queue, "b", [5], "hidden")
    put(queue, "c", [6])
    put(queue, "b", [7])
    assert take(queue, runner) == [("a", 4), ("c", 6)]
    assert take(queue, runner) == [("b", 5)]
    assert take(queue, runner) == [("b", 7)]


def test_too_much_is_refused_with_a_time_to_come_back(runner: PartRunner, put: Put) -> None:
    pace = ThroughputEstimator(1.0, 1024)
    pace.note(100, 1.0)
    queue = TokenQueue(pace, 10**6, max_wait_s=5)
    put(queue, "a", [600])
    assert queue.full
    with pytest.raises(ServeError, match="600 tokens wait, about 6.0 s") as refused:
        put(queue, "b", [1])
    assert (refused.value.kind, refused.value.retry_after) == ("overloaded", 6)
    take(queue, runner)
    assert queue.full
    with pytest.raises(ServeError, match="0 tokens wait, about 6.0 s"):  # for what runs now
        put(queue, "b", [1])
    queue.end(runner, 600, 6.0)
    put(queue, "b", [1])

    queue = queue_of(max_tokens=100)
    put(queue, "a", [900])  # an empty queue takes it: whatever it has, it can be run
    with pytest.raises(ServeError, match="overloaded"):
        put(queue, "a", [1])


def test_what_was_cancelled_or_is_late_does_not_run(runner: PartRunner, put: Put) -> None:
    queue = queue_of()
    gone = put(queue, "a", [10, 10], piece=10)
    late = put(queue, "b", [10], within=-1.0)
    put(queue, "c", [10])
    queue.throughput._max_tokens = 10
    found = queue.take(runner)
    assert found is not None
    assert [one.work for one in found[0]] == [gone]
    assert found[1] == [late]
    queue.cancel(gone)
    queue.cancel(gone)
    assert (queue.tokens, queue.requests) == (10, 1)
    assert take(queue, runner) == [("c", 10)]
    assert isinstance(late.error, ServeError)
    assert late.error.kind == "timeout"
    assert (queue.tokens, queue.requests) == (0, 0)


def test_a_closed_queue_runs_what_it_has(runner: PartRunner, put: Put) -> None:
    queue = queue_of()
    put(queue, "a", [10])
    queue.close()
    with pytest.raises(ServeError, match="unloaded"):
        put(queue, "a", [10])
    assert take(queue, runner) == [("a", 10)]
    assert queue.take(runner) is None
