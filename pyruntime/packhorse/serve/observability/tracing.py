"""Traces, where the packages of OpenTelemetry are installed and somebody takes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from packhorse.serve.observability.timings import Timings


class TracedRequest(NamedTuple):
    """Data of the trace of a request that has been answered.

    started     of `time.monotonic`
    attributes  of its span, beside method and route
    """

    method: str
    route: str
    headers: Mapping[bytes, bytes]
    started: float
    attributes: Mapping[str, Any]


class Tracer:
    """A span for each request, and within it spans for tokenizing, waiting and running.

    The trace of the client goes on where it sends a `traceparent` (W3C Trace Context). Made only
    where an endpoint is set: nothing of this costs anything otherwise.
    """

    def __init__(self, endpoint: str) -> None:
        """Raises ModuleNotFoundError without the extra `tracing`."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError:
            from packhorse_weights.extras import missing_package

            raise missing_package("tracing", "opentelemetry-sdk", "otlp_endpoint") from None
        url = endpoint if endpoint.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
        self.provider = TracerProvider(resource=Resource.create({"service.name": "packhorse"}))
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer: Any = self.provider.get_tracer("packhorse.serve")

    def request(self, request: TracedRequest, work: Timings | None) -> None:
        """A request has been answered. work: what models did for it, if they did."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {
            name: request.headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in request.headers
        }
        context = TraceContextTextMapPropagator().extract(carrier)
        offset = time.time_ns() - time.monotonic_ns()  # from the monotonic clock to the wall's

        def at(seconds: float) -> int:
            return int(seconds * 1e9) + offset

        span = self._tracer.start_span(
            f"{request.method} {request.route}",
            context=context,
            kind=SpanKind.SERVER,
            start_time=at(request.started),
            attributes={
                "http.request.method": request.method,
                "http.route": request.route,
                **request.attributes,
            },
        )
        if work is not None:
            self._parts(span, work, at)
        span.end(end_time=time.time_ns())

    def _parts(self, span: Any, work: Timings, at: Any) -> None:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(span)
        for name, begin, seconds in (
            ("tokenize", work.queued_at - work.tokenize_s, work.tokenize_s),
            ("queue", work.queued_at, work.queue_s),
            ("run", work.started_at, work.run_s),
        ):
            part = self._tracer.start_span(name, context=context, start_time=at(begin))
            part.end(end_time=at(begin + seconds))

    def close(self) -> None:
        """Sends what has not been sent. Blocks."""
        self.provider.shutdown()
