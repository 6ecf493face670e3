"""A model under a name, of texts or of images: replicas, their queue, and the threads that run
them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from packhorse.serve.errors import ServeError
from packhorse.serve.models.queue import TokenQueue
from packhorse.serve.models.queued_request import QueuedRequest
from packhorse.serve.models.throughput import ThroughputEstimator
from packhorse.serve.models.tokenizing import TokenizerPool, TokenizingTask, run_tasks
from packhorse.serve.models.weight import MUCH
from packhorse.serve.models.worker import Worker
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.text.runner import Task

AnyTask = Task[Any, Any, Any]
Made = TypeVar("Made")
_MUCH_INPUT = 2048  # tokens whose results take the event loop a few milliseconds
_MOST_NUMBERS = 64_000_000  # limit for the results of one request: 256 MB
_PIECES = 8  # pieces of a batch: what a request has beyond one piece may run in another batch


class Outcome(NamedTuple):
    """Results of a request, and the work that they took."""

    found: Any
    tokens: int
    work: QueuedRequest


class Adapter(NamedTuple):
    """A LoRA adapter of a model, by whose name it is asked for.

    path     its folder
    created  when it was loaded, in seconds since 1970
    """

    name: str
    path: str
    created: int


class Replica(Protocol):
    """A model that is loaded on one device."""

    @property
    def session(self) -> Any: ...

    def close(self) -> None: ...


class Served:
    """A model under a name, loaded once for each device.

    make_runner  the `PartRunner` of a replica, or what does the same; None: nothing is packed
                 into batches here
    warm_up      runs a batch of a replica, and gives (its tokens, seconds)
    methods      what it can do
    """

    def __init__(
        self,
        settings: ModelSettings,
        server: Settings,
        replicas: Sequence[Replica],
        pool: TokenizerPool,
        metrics: Metrics,
        *,
        make_runner: Callable[[Any], Any] | None,
        warm_up: Callable[[Any], tuple[int, float]],
        methods: Sequence[str],
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.path = settings.path
        self.created = int(time.time())
        self.replicas: Sequence[Any] = tuple(replicas)
        self.methods = frozenset(methods)
        self.generates = False
        self.adapters: dict[str, Adapter] = {}
        self._pool = pool
        self._tasks: dict[Hashable, Any] = {}
        workers = [one for one in replicas for _ in range(1 if one.session.device == "cpu" else 2)]
        throughput = ThroughputEstimator(
            server.max_batch_ms / 1000, self.session.max_tokens, len(workers)
        )
        self.queue = TokenQueue(throughput, server.max_queue_tokens, server.max_wait_s)
        self._runner: Any = None
        self._workers: list[Worker] = []
        if make_runner is None:
            return
        self._runner = make_runner(replicas[0])
        # While a GPU runs one batch, another worker packs the next one.
        self._workers = [
            Worker(
                f"{self.name}@{one.session.device}",
                self.queue,
                make_runner(one),
                metrics.of_batch(self.name),
                [make_runner(other) for other in replicas if other is not one],
            )
            for one in workers
        ]
        for replica in replicas:
            throughput.note(*warm_up(replica))
        for worker in self._workers:
            worker.start()

    @property
    def session(self) -> Any:
        """The session of the first replica: what all of them have in common is asked of it."""
        return self.replicas[0].session

    @property
    def device(self) -> str:
        """Device of the first replica."""
        return str(self.session.device)

    @property
    def devices(self) -> list[str]:
        """The device of each replica."""
        return [replica.session.device for replica in self.replicas]

    @property
    def memory_bytes(self) -> int:
        """Planned for all replicas together."""
        return sum(one.session.memory_plan.total_bytes for one in self.replicas)

    @property
    def queues(self) -> list[TokenQueue]:
        """Where its requests wait."""
        return [self.queue]

    @property
    def queue_tokens(self) -> int:
        return sum(queue.tokens for queue in self.queues)

    @property
    def queue_requests(self) -> int:
        return sum(queue.requests for queue in self.queues)

    @property
    def healthy(self) -> bool:
        """True if all its threads run."""
        return all(worker.is_alive() for worker in self._workers)

    def require(self, method: str, what: str) -> None:
        """Raises ServeError where the model is not made for it; `what` names such models."""
        if method not in self.methods:
            able = ", ".join(sorted(self.methods))
            raise ServeError("unsuited", f"model {self.name!r} is not {what}; it can: {able}")

    def estimate(self, items: list[Any]) -> tuple[int, int]:
        """(about how many tokens the items have, before anybody has counted them; characters)"""
        raise NotImplementedError

    def _is_quick(self, _work: QueuedRequest, _items: list[Any]) -> bool:
        """True if the items are prepared in less than a millisecond."""
        return False

    async def run(
        self, task: AnyTask, items: list[Any], client: str, deadline: float, wait: Any
    ) -> Outcome:
        """The results of a task for some items, when they have run.

        client, deadline  as of `QueuedRequest`
        wait              awaits a `QueuedRequest`, and gives up when the client does

        Raises ServeError, ClientGoneError.
        """
        work = QueuedRequest(client, deadline, *self.estimate(items))
        self.queue.admit(work)
        try:
            jobs = self._jobs(work, task, items)
            if self.queue.requests == 1 and self._is_quick(work, items):
                for failed in run_tasks(jobs):  # nothing else waits: a thread would only cost time
                    failed.finish()
            else:
                for job in jobs:
                    self._pool.submit(job)
            await wait(work)
        except BaseException:
            self.queue.cancel(work)
            raise
        assert work.result is not None
        finish = partial(task.finish, items, work.kept, work.result)
        much = work.tokens > _MUCH_INPUT or work.numbers > MUCH
        return Outcome(await asyncio.to_thread(finish) if much else finish(), work.tokens, work)

    def _jobs(self, work: QueuedRequest, task: AnyTask, items: list[Any]) -> list[TokenizingTask]:
        """The preparing of some items, in one job or several, of which the last one puts it all."""
        return [TokenizingTask(work, task, items, self._put)]

    def _put(self, work: QueuedRequest, request: Any, kept: Any) -> None:
        """Puts a request that is prepared into the queue. Called on a thread of the pool."""
        work.numbers = self._runner.numbers(request)
        if work.numbers > _MOST_NUMBERS:
            raise ServeError(
                "too_large",
                f"the model's results would be {work.numbers} numbers, at most {_MOST_NUMBERS} are "
                "made for one request: send fewer inputs",
            )
        piece = self.queue.throughput.batch_tokens // _PIECES
        result, parts = self._runner.cut(request, max(1, piece))
        work.result, work.kept = result, kept
        self._learn(work, int(result.cu_seqlens[-1]))
        self.queue.put(work, parts)

    def _learn(self, work: QueuedRequest, tokens: int) -> None:
        """Takes note of how many tokens the items of some work had."""

    def remove_adapter(self, name: str) -> None:
        """Raises ValueError: there are none."""
        raise ValueError(f"model {self.name!r} has no adapter {name!r:.80}")

    def add_adapter(self, _name: str, _path: str) -> None:
        """Raises ValueError: there can be none."""
        raise ValueError(f"model {self.name!r} does not generate, and so takes no adapters")

    def stats(self) -> dict[str, int]:
        """Counts of a model that generates."""
        return {}

    def languages(self) -> dict[str, Any] | None:
        """Languages that requests to translate may name; None: the model does not translate."""
        return None

    async def close(self) -> None:
        """Runs what was admitted, and frees the model."""
        self.queue.close()
        await asyncio.to_thread(self._free)

    def _free(self) -> None:
        for worker in self._workers:
            worker.join()
        for replica in self.replicas:
            replica.close()
