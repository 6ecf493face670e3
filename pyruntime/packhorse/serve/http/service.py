"""Shared state of a server's routes: its settings, models, threads and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from packhorse.serve.http.bodies import Bodies
from packhorse.serve.http.image_urls import ImageUrls
from packhorse.serve.http.sites import Sites
from packhorse.serve.models.gauges import Gauges
from packhorse.serve.models.loading import assign_adapters, check_suited
from packhorse.serve.models.memory import Tidying
from packhorse.serve.models.queued_request import Deadlines
from packhorse.serve.models.registry import Registry
from packhorse.serve.models.threads import Threads
from packhorse.serve.models.tokenizing import TokenizerPool, as_served
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.observability.tracing import Tracer
from packhorse.serve.settings import Settings

Found = TypeVar("Found")
_FETCHERS = 8  # images that are fetched at a time
_BODY_THREADS = 2  # more would only take the interpreter lock from each other


class Service:
    """Made before the models are loaded; `start` loads them."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError for settings that are not acceptable together."""
        self.settings = settings.checked()
        self.metrics = Metrics()
        self.tokenization_workers = settings.preparing_threads
        self.pool = TokenizerPool(self.tokenization_workers)
        self.threads = Threads(self.tokenization_workers, settings.max_wait_s)
        self._executor = ThreadPoolExecutor(_BODY_THREADS, "packhorse-body")
        self.tidying = Tidying(self._executor)
        self.registry = Registry(settings, self.pool, self.metrics)
        self.metrics.registry.register(Gauges(self.registry.models))
        self.tracer = None if settings.otlp_endpoint is None else Tracer(settings.otlp_endpoint)
        self.sites = Sites(settings, self.metrics)
        self.image_urls = ImageUrls(settings, self.metrics)
        self.fetchers = ThreadPoolExecutor(_FETCHERS, "packhorse-fetch")
        self.deadlines = Deadlines()
        self.bodies = Bodies(settings.body_bytes, self.metrics)
        self.stopping = False
        self.started = False  # the lifespan has begun

    async def start(self) -> None:
        """Loads all models, once. Raises as `TextModel.load`."""
        if self.started:
            return
        self.started = True
        try:
            for model in assign_adapters(self.settings):
                await self.registry.load(model)
            check_suited(self.settings, self.registry.models())
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Runs what was admitted, and frees all models."""
        self.stopping = True
        await self.registry.close()
        self.pool.close()
        self.threads.close()
        self.tidying.close()
        self._executor.shutdown()
        self.fetchers.shutdown(cancel_futures=True)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)

    async def on_thread(self, find: Callable[[], Found]) -> Found:
        """Runs a short function on a thread beside the event loop: bodies are read and
        written so. Raises ServeError for its errors."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, find)
        except Exception as error:
            raise as_served(error) from error

    @property
    def healthy(self) -> bool:
        models = self.registry.models()
        return bool(models) and all(model.healthy for model in models)
