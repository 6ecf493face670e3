"""What all routes of a server share: its settings, models, threads and metrics."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from packhorse.serve.exchange import Done, Exchange, Headers
from packhorse.serve.logs import LOGGER
from packhorse.serve.metrics import Metrics
from packhorse.serve.model import AnyTask, Outcome, ServedModel
from packhorse.serve.registry import Registry
from packhorse.serve.settings import Settings
from packhorse.serve.tokenizing import TokenizerPool, as_served
from packhorse.serve.tracing import Tracer
from packhorse.serve.work import Deadlines

Found = TypeVar("Found")


class Service:
    """Made before the models are loaded; `start` loads them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics(lambda: self.registry.models())
        self.tokenization_workers = settings.tokenization_workers or min(4, os.cpu_count() or 1)
        self.pool = TokenizerPool(self.tokenization_workers)
        self._executor = ThreadPoolExecutor(self.tokenization_workers, "packhorse-text")
        self.registry = Registry(settings, self.pool, self.metrics)
        self.tracer = None if settings.otlp_endpoint is None else Tracer(settings.otlp_endpoint)
        self.deadlines = Deadlines()
        self.stopping = False
        self._started = False

    async def start(self) -> None:
        """Loads all models, once. Raises as `TextModel.load`."""
        if self._started:
            return
        self._started = True
        try:
            for model in self.settings.models:
                await self.registry.load(model)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Runs what was admitted, and frees all models."""
        self.stopping = True
        await self.registry.close()
        self.pool.close()
        self._executor.shutdown()
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)

    async def on_thread(self, find: Callable[[], Found]) -> Found:
        """What a function finds, on a thread beside the event loop. Raises ServeError for its
        errors."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, find)
        except Exception as error:
            raise as_served(error) from error

    def note(self, exchange: Exchange) -> None:
        """Counts a request that has been answered with what models did."""
        done = exchange.done
        assert done is not None
        work = done.work
        seconds = done.at - exchange.started
        self.metrics.succeed(done.method, done.kind, done.texts, seconds, work)
        if LOGGER.isEnabledFor(logging.INFO) or self.tracer is not None:
            exchange.usage = {
                "texts": done.texts,
                "tokens": work.tokens,
                "tokenization_ms": round(work.tokenize_s * 1e3, 3),
                "queue_ms": round(work.queue_s * 1e3, 3),
                "inference_ms": round(work.run_s * 1e3, 3),
            }

    @property
    def healthy(self) -> bool:
        models = self.registry.models()
        return bool(models) and all(model.healthy for model in models)

    async def run(
        self,
        exchange: Exchange,
        model: ServedModel,
        task: AnyTask,
        items: list[Any],
        kind: str | None,
        *,
        single: bool = False,
    ) -> Outcome:
        """The results of a task, which `note` counts when they have been sent. Raises ServeError, ClientGoneError.

        kind    "embed", "predict" or None, for the metrics
        single  whether the request has one text that is not in a list
        """
        method = "single" if single else "batch"
        exchange.model = model.name
        self.metrics.begin(method)
        outcome = await model.run(task, items, exchange.client, exchange.deadline, exchange.wait)
        exchange.done = Done(method, kind, len(items), time.monotonic(), outcome.work)
        return outcome


def compute_headers(exchange: Exchange, outcome: Outcome, characters: int, device: str) -> Headers:
    """The headers by which text-embeddings-inference says what a request took; times in
    milliseconds."""
    work = outcome.work
    total = int((time.monotonic() - exchange.started) * 1000)
    kind = "cpu" if device == "cpu" else "gpu"
    return [
        (b"x-compute-type", kind.encode()),
        (b"x-compute-time", b"%d" % total),
        (b"x-compute-characters", b"%d" % characters),
        (b"x-compute-tokens", b"%d" % outcome.tokens),
        (b"x-total-time", b"%d" % total),
        (b"x-tokenization-time", b"%d" % int(work.tokenize_s * 1000)),
        (b"x-queue-time", b"%d" % int(work.queue_s * 1000)),
        (b"x-inference-time", b"%d" % int(work.run_s * 1000)),
    ]
