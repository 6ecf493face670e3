"""Routes for the health of the server, its metrics, and its description (OpenAPI)."""

from __future__ import annotations

from packhorse.serve.errors import ServeError
from packhorse.serve.http.exchange import Exchange, Reply, json_reply
from packhorse.serve.openapi import document


async def health(exchange: Exchange) -> Reply:
    """GET /health, /ping: 200 where the models are loaded and their threads run."""
    if not exchange.service.healthy:
        raise ServeError("unhealthy", "unhealthy")
    return Reply(b"", content_type=b"text/plain; charset=utf-8")


async def ready(exchange: Exchange) -> Reply:
    """GET /ready: 200 where a request would be taken now; not while the server stops."""
    service = exchange.service
    if service.stopping:
        raise ServeError("unhealthy", "the server is stopping")
    if not service.healthy:
        raise ServeError("unhealthy", "no model is loaded")
    for model in service.registry.models():
        if any(queue.full for queue in model.queues):
            raise ServeError("unhealthy", f"model {model.name!r} is overloaded")
    return Reply(b"", content_type=b"text/plain; charset=utf-8")


async def metrics(exchange: Exchange) -> Reply:
    """GET /metrics: in the text format of Prometheus."""
    body = exchange.service.metrics.render()
    return Reply(body, content_type=b"text/plain; version=0.0.4; charset=utf-8")


async def openapi(_exchange: Exchange) -> Reply:
    """GET /openapi.json: the description of all routes."""
    return json_reply(document())
