"""Prometheus metrics, by the names that text-embeddings-inference has, and some of our own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from packhorse.serve.model import ServedModel
    from packhorse.serve.work import Work

_SECONDS = [0.00001 * 1.5**power for power in range(1, 36, 2)]
_POWERS = [float(2**power) for power in range(21)]
# The package ends names of counters with _total; those of text-embeddings-inference have no end.
_TEI_COUNTER = re.compile(rb"\b(te_\w+)_total\b")
_CREATED = re.compile(rb"^.*_created\b.*\n", re.MULTILINE)


class _Queues(Collector):
    """What waits at the moment that somebody asks."""

    def __init__(self, models: Callable[[], Iterable[ServedModel]]) -> None:
        self._models = models

    def collect(self) -> Iterator[GaugeMetricFamily]:
        models = list(self._models())
        yield GaugeMetricFamily(
            "te_queue_size", "Requests that wait", sum(one.queue.requests for one in models)
        )
        tokens = GaugeMetricFamily(
            "packhorse_queue_tokens", "Tokens that wait for a model", labels=["model"]
        )
        pace = GaugeMetricFamily(
            "packhorse_tokens_per_second", "Tokens that a model runs in a second", labels=["model"]
        )
        engines = {
            name: GaugeMetricFamily(f"packhorse_generation_{name}", text, labels=["model"])
            for name, text in (
                ("running", "Sequences that are being generated"),
                ("queued", "Sequences that wait to be generated"),
                ("pages_used", "Pages of the cache that running sequences use"),
                ("pages_free", "Pages of the cache that are free"),
            )
        }
        for one in models:
            tokens.add_metric([one.name], one.queue.tokens)
            pace.add_metric([one.name], one.queue.pace.tokens_per_second)
            for name, family in engines.items():
                if one.generates:
                    family.add_metric([one.name], one.stats()[name])
        yield tokens
        yield pace
        yield from engines.values()


class Metrics:
    """All metrics of one server."""

    def __init__(self, models: Callable[[], Iterable[ServedModel]]) -> None:
        """`models`: those that are served at the moment."""
        self.registry = CollectorRegistry()
        self.registry.register(_Queues(models))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: list[float], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

        self._count = counter("te_request_count", "Requests", "method")
        self._success = counter("te_request_success", "Requests that were answered", "method")
        self._failure = counter("te_request_failure", "Requests that failed", "err")
        self._duration = histogram("te_request_duration", "Seconds of a request", _SECONDS)
        self._tokenization = histogram(
            "te_request_tokenization_duration", "Seconds that tokenizing took", _SECONDS
        )
        self._queue = histogram(
            "te_request_queue_duration", "Seconds that a request waited", _SECONDS
        )
        self._inference = histogram(
            "te_request_inference_duration", "Seconds that the model took", _SECONDS
        )
        self._length = histogram("te_request_input_length", "Tokens of a request", _POWERS)
        self._kinds = {
            name: (
                counter(f"te_{name}_count", f"Texts of requests: {name}"),
                counter(f"te_{name}_success", f"Texts of requests that were answered: {name}"),
                histogram(f"te_{name}_duration", f"Seconds of a request: {name}", _SECONDS),
            )
            for name in ("embed", "predict")
        }
        self._batch_size = histogram("te_batch_next_size", "Sequences of a batch", _POWERS[:13])
        self._batch_tokens = histogram("te_batch_next_tokens", "Tokens of a batch", _POWERS)
        self._model_requests = counter(
            "packhorse_requests", "Requests by model, route and status", "model", "route", "status"
        )
        self._model_tokens = counter("packhorse_tokens", "Tokens that a model ran", "model")
        self._model_seconds = counter(
            "packhorse_batch_seconds", "Seconds that a model ran batches", "model"
        )
        self.generated = counter("packhorse_generated_tokens", "Tokens generated", "model")
        self.first_token = histogram(
            "packhorse_time_to_first_token_seconds", "Seconds to the first token", _SECONDS, "model"
        )

    def begin(self, method: str) -> None:
        """A request has come: "single", or "batch" where it has several texts."""
        self._count.labels(method).inc()

    def succeed(
        self, method: str, kind: str | None, texts: int, seconds: float, work: Work
    ) -> None:
        """It was answered. kind: "embed" or "predict", of so many texts; None: neither."""
        self._success.labels(method).inc()
        self._duration.observe(seconds)
        self._tokenization.observe(work.tokenize_s)
        self._queue.observe(work.queue_s)
        self._inference.observe(work.run_s)
        self._length.observe(work.tokens)
        if kind is not None:
            count, success, duration = self._kinds[kind]
            count.inc(texts)
            success.inc(texts)
            duration.observe(seconds)

    def fail(self, kind: str) -> None:
        """It was refused, or failed: a kind of `ServeError`."""
        self._failure.labels(kind).inc()

    def answered(self, model: str, route: str, status: int) -> None:
        self._model_requests.labels(model, route, str(status)).inc()

    def of_batch(self, model: str) -> Callable[[int, int, float], None]:
        """What a worker of a model calls after each batch."""
        tokens_run = self._model_tokens.labels(model)
        seconds_run = self._model_seconds.labels(model)

        def note(tokens: int, sequences: int, seconds: float) -> None:
            self._batch_size.observe(sequences)
            self._batch_tokens.observe(tokens)
            tokens_run.inc(tokens)
            seconds_run.inc(seconds)

        return note

    def render(self) -> bytes:
        """All of them in the text format of Prometheus."""
        text: bytes = generate_latest(self.registry)
        return _TEI_COUNTER.sub(rb"\1", _CREATED.sub(b"", text))
