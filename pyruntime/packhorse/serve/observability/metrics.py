"""Prometheus metrics, by the names that text-embeddings-inference has, and some of our own."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from packhorse.serve.observability.timings import Timings

_SECONDS = [0.00001 * 1.5**power for power in range(1, 36, 2)]
_POWERS = [float(2**power) for power in range(21)]
# The package ends names of counters with _total; those of text-embeddings-inference have no end.
_TEI_COUNTER = re.compile(rb"\b(te_\w+)_total\b")
_BY_ROUTE = ("model", "route", "status")


class Tally(Collector):
    """Numbers that only grow, by the values of their labels. Not locked, as those of the package
    are, and so many times as fast; who adds from several threads takes a lock."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name = name
        self._text = text
        self._labels = labels
        self._found: dict[tuple[str, ...], float] = {}

    def add(self, number: float, *labels: str) -> None:
        self._found[labels] = self._found.get(labels, 0) + number

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self.name, self._text, labels=self._labels)
        if not self._labels and not self._found:
            family.add_metric((), 0)
        for labels, number in list(self._found.items()):
            family.add_metric(labels, number)
        yield family


class Distribution(Collector):
    """Histogram: counts of numbers up to each of some limits. Not locked either."""

    def __init__(self, name: str, text: str, limits: Sequence[float]) -> None:
        self.name = name
        self._text = text
        self._limits = limits
        self._counts = [0] * (len(limits) + 1)
        self._sum = 0.0

    def add(self, number: float) -> None:
        self._counts[bisect_left(self._limits, number)] += 1
        self._sum += number

    def collect(self) -> Iterator[HistogramMetricFamily]:
        names = [*map(floatToGoString, self._limits), "+Inf"]
        counts = list(accumulate(self._counts))
        buckets = list(zip(names, counts, strict=True))
        yield HistogramMetricFamily(self.name, self._text, buckets=buckets, sum_value=self._sum)


class Metrics:
    """All metrics of one server. What is counted for each request is counted on the event loop
    alone; workers count batches."""

    def __init__(self) -> None:
        counts = (
            Tally("te_request_count", "Requests", "method"),
            Tally("te_request_success", "Requests that were answered", "method"),
            Tally("te_request_failure", "Requests that failed", "err"),
            Tally("te_embed_count", "Texts of requests: embed"),
            Tally("te_embed_success", "Texts of requests that were answered: embed"),
            Tally("te_predict_count", "Texts of requests: predict"),
            Tally("te_predict_success", "Texts of requests that were answered: predict"),
            Tally("packhorse_requests", "Requests by model, route, status", *_BY_ROUTE),
            Tally("packhorse_tokens", "Tokens that a model ran", "model"),
            Tally("packhorse_images", "Images of requests that were answered", "model"),
            Tally("packhorse_batch_seconds", "Seconds that a model ran batches", "model"),
            Tally("packhorse_generated_tokens", "Tokens that were generated", "model"),
            Tally("packhorse_refused", "Requests and connections that were turned away", "reason"),
        )
        distributions = (
            Distribution("te_request_duration", "Seconds of a request", _SECONDS),
            Distribution("te_request_tokenization_duration", "Seconds of tokenizing", _SECONDS),
            Distribution("te_request_queue_duration", "Seconds of waiting", _SECONDS),
            Distribution("te_request_inference_duration", "Seconds of running", _SECONDS),
            Distribution("te_request_input_length", "Tokens of a request", _POWERS),
            Distribution("te_embed_duration", "Seconds of a request: embed", _SECONDS),
            Distribution("te_predict_duration", "Seconds of a request: predict", _SECONDS),
            Distribution("te_batch_next_size", "Sequences of a batch", _POWERS[:13]),
            Distribution("te_batch_next_tokens", "Tokens of a batch", _POWERS),
            Distribution(
                "packhorse_time_to_first_token_seconds", "Seconds to the first text", _SECONDS
            ),
            Distribution(
                "packhorse_time_per_output_token_seconds",
                "Seconds of a token after the first text, the mean of each prompt",
                _SECONDS,
            ),
        )
        self._count = {one.name: one for one in counts}
        self._of = {one.name: one for one in distributions}
        self.registry = CollectorRegistry()
        for collector in (*counts, *distributions):
            self.registry.register(collector)
        self._batches = threading.Lock()

    def begin(self, method: str) -> None:
        """A request has come: "single", or "batch" where it has several texts."""
        self._count["te_request_count"].add(1, method)

    def succeed(
        self, method: str, kind: str | None, texts: int, seconds: float, work: Timings
    ) -> None:
        """Counts an answered request. kind: "embed" or "predict", of so many texts; None:
        neither."""
        self._count["te_request_success"].add(1, method)
        self._of["te_request_duration"].add(seconds)
        self._of["te_request_tokenization_duration"].add(work.tokenize_s)
        self._of["te_request_queue_duration"].add(work.queue_s)
        self._of["te_request_inference_duration"].add(work.run_s)
        self._of["te_request_input_length"].add(work.tokens)
        if kind is not None:
            self._count[f"te_{kind}_count"].add(texts)
            self._count[f"te_{kind}_success"].add(texts)
            self._of[f"te_{kind}_duration"].add(seconds)

    def saw(self, model: str, images: int) -> None:
        """A model has given results of so many images."""
        self._count["packhorse_images"].add(images, model)

    def fail(self, kind: str) -> None:
        """Counts a request that was refused or failed, by the kind of its `ServeError`."""
        self._count["te_request_failure"].add(1, kind)

    def refused(self, reason: str) -> None:
        """A request or a connection was turned away for what its client does, or since there are
        too many."""
        self._count["packhorse_refused"].add(1, reason)

    def answered(self, model: str, route: str, status: int) -> None:
        """Whatever came of a request."""
        self._count["packhorse_requests"].add(1, model, route, str(status))

    def generated(
        self, model: str, tokens: int, first_s: float | None, token_s: Sequence[float]
    ) -> None:
        """A request to generate has ended.

        first_s  seconds to its first text; None: none came
        token_s  of each prompt that has ended, seconds of a token after the first text
        """
        self._count["packhorse_generated_tokens"].add(tokens, model)
        if first_s is not None:
            self._of["packhorse_time_to_first_token_seconds"].add(first_s)
        for seconds in token_s:
            self._of["packhorse_time_per_output_token_seconds"].add(seconds)

    def of_batch(self, model: str) -> Callable[[int, int, float], None]:
        """Callback for a worker of a model, to be called after each batch."""

        def note(tokens: int, sequences: int, seconds: float) -> None:
            with self._batches:
                self._of["te_batch_next_size"].add(sequences)
                self._of["te_batch_next_tokens"].add(tokens)
                self._count["packhorse_tokens"].add(tokens, model)
                self._count["packhorse_batch_seconds"].add(seconds, model)

        return note

    def render(self) -> bytes:
        """Writes all metrics in the text format of Prometheus."""
        text: bytes = generate_latest(self.registry)
        return _TEI_COUNTER.sub(rb"\1", text)
