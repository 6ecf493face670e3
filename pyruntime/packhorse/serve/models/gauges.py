"""Prometheus metrics of what models do at the moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from packhorse.serve.models.served import Served
from packhorse.serve.observability.logs import dropped_lines


class Gauges(Collector):
    """Numbers of requests and tokens that wait and run, counted when somebody asks."""

    def __init__(self, models: Callable[[], Iterable[Served]]) -> None:
        """`models`: those that are served at the moment."""
        self._models = models

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        models = list(self._models())
        yield GaugeMetricFamily(
            "te_queue_size", "Requests that wait", sum(one.queue_requests for one in models)
        )
        tokens = GaugeMetricFamily(
            "packhorse_queue_tokens", "Tokens that wait for a model", labels=["model"]
        )
        throughput = GaugeMetricFamily(
            "packhorse_tokens_per_second", "Tokens that a model runs in a second", labels=["model"]
        )
        engines = {
            name: GaugeMetricFamily(f"packhorse_generation_{name}", text, labels=["model"])
            for name, text in (
                ("running", "Sequences that are being generated"),
                ("queued", "Sequences that wait to be generated"),
                ("pages", "Pages of the cache"),
                ("pages_used", "Pages of the cache that running sequences use"),
                ("pages_cached", "Pages of the cache that are kept for prompts that begin alike"),
                ("pages_free", "Pages of the cache that are free"),
            )
        }
        for one in models:
            tokens.add_metric([one.name], one.queue_tokens)
            throughput.add_metric([one.name], one.queue.throughput.tokens_per_second)
            for name, family in engines.items():
                if one.generates:
                    family.add_metric([one.name], one.stats()[name])
        yield CounterMetricFamily(
            "packhorse_log_lines_dropped", "Lines of the log that nobody took", dropped_lines()
        )
        yield tokens
        yield throughput
        yield from engines.values()
