"""A route: from ASGI to a function that answers, with what every request needs around it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from packhorse.serve.errors import ClientGoneError, ServeError
from packhorse.serve.http.exchange import (
    SURPLUS,
    Exchange,
    Receive,
    Reply,
    Scope,
    Send,
)
from packhorse.serve.http.field_names import FieldNames, in_fields
from packhorse.serve.http.json_parts import to_json
from packhorse.serve.http.service import Service
from packhorse.serve.observability.logs import LOGGER, log
from packhorse.serve.observability.tracing import TracedRequest

_GONE = 499  # the client, as servers write it in their logs


class Answer(Protocol):
    """Result of a handler: a `Reply`, or a stream."""

    status: int

    async def send(self, exchange: Exchange, send: Send) -> None: ...


Handler = Callable[[Exchange], Awaitable[Answer]]
Style = Callable[[ServeError], Reply]  # writes an error as a protocol has it


class Endpoint:
    """An ASGI application of one route.

    path    the route, for metrics and logs
    style   how it says errors
    names   of the library's arguments, in its errors
    public  whether it needs no API key
    """

    def __init__(
        self,
        service: Service,
        path: str,
        handler: Handler,
        style: Style,
        names: FieldNames,
        *,
        public: bool = False,
    ) -> None:
        self._service = service
        self._path = path
        self._handler = handler
        self._style = style
        self._names = names
        self._public = public
        self._keys = [] if public else [key.encode() for key in service.settings.api_key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._service, scope, receive)
        try:
            await self._answer(exchange, send)
        finally:
            exchange.release()

    async def _answer(self, exchange: Exchange, send: Send) -> None:
        failure: ServeError | None = None
        try:
            self._service.sites.check(exchange.scope["method"], exchange.headers)
            if SURPLUS in exchange.scope and not self._public:
                raise ServeError("busy", "there are too many connections", retry_after=1)
            if self._keys:
                self._check_key(exchange)
            if not (self._service.started or self._public):
                raise ServeError(
                    "unhealthy",
                    "the models are not loaded: whoever runs this application has not begun its "
                    "lifespan",
                )
            answer: Answer = await self._handler(exchange)
        except ClientGoneError:
            self._note(exchange, _GONE, None)
            return
        except ServeError as error:
            failure = error
            answer = self._failed(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            failure = ServeError("internal", f"an error of the server: {type(error).__name__}")
            failure.__cause__ = error
            answer = self._failed(failure)
        status = answer.status
        try:
            await answer.send(exchange, send)
        except ClientGoneError:
            status = _GONE
        finally:
            self._note(exchange, status, failure)

    def _check_key(self, exchange: Exchange) -> None:
        given = exchange.headers.get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        token = token.strip() if scheme.lower() == b"bearer" else b""
        found = [number for number, key in enumerate(self._keys) if hmac.compare_digest(key, token)]
        if not found:
            what = "is not one of this server" if given else "is missing"
            raise ServeError("unauthorized", f"the bearer token {what}")
        if len(self._keys) > 1:
            exchange.client = f"key {found[0]}"
        if self._service.settings.prefix_cache == "key":
            exchange.cache_salt = found[0] + 1

    def _failed(self, error: ServeError) -> Reply:
        self._service.metrics.fail(error.kind)
        error.message = in_fields(error.message, self._names)
        reply = self._style(error)
        if error.retry_after is not None:
            reply.headers.append((b"retry-after", b"%d" % error.retry_after))
        if error.allow is not None:
            reply.headers.append((b"allow", error.allow.encode()))
        if error.kind == "unauthorized":
            reply.headers.append((b"www-authenticate", b"Bearer"))
        return reply

    def _note(self, exchange: Exchange, status: int, error: ServeError | None) -> None:
        service = self._service
        done = exchange.done
        if done is not None:
            seconds = done.at - exchange.started
            service.metrics.succeed(done.method, done.kind, done.texts, seconds, done.work)
            if LOGGER.isEnabledFor(logging.INFO) or service.tracer is not None:
                exchange.usage = done.usage
        service.metrics.answered(exchange.model, self._path, status)
        log_request(exchange, self._path, status, error)
        if service.tracer is not None:
            traced = TracedRequest(
                exchange.scope["method"],
                self._path,
                exchange.headers,
                exchange.started,
                {
                    "http.response.status_code": status,
                    "packhorse.model": exchange.model,
                    "packhorse.request_id": exchange.request_id,
                    **{f"packhorse.{name}": value for name, value in exchange.usage.items()},
                },
            )
            service.tracer.request(traced, None if done is None else done.work)


def log_request(exchange: Exchange, path: str, status: int, error: ServeError | None) -> None:
    """A line of the log for one request."""
    if error is None and not LOGGER.isEnabledFor(logging.INFO):
        return
    fields = {
        "request_id": exchange.request_id,
        "route": path,
        "status": status,
        "ms": round((time.monotonic() - exchange.started) * 1000, 3),
        "client": exchange.client,
        "model": exchange.model,
        **exchange.usage,
    }
    if error is None:
        log(logging.INFO, "request", **fields)
        return
    own = error.kind == "backend" or (error.answer.tei_status >= 500 and error.kind != "busy")
    level = logging.ERROR if own else logging.INFO
    log(level, "request failed", error.__cause__ if own else None, error=error.message, **fields)


def tei_style(error: ServeError) -> Reply:
    """Writes an error as text-embeddings-inference does."""
    content = {"error": error.message, "error_type": error.answer.tei_type}
    return Reply(to_json(content), error.answer.tei_status)


def openai_style(error: ServeError) -> Reply:
    """Writes an error as OpenAI does."""
    content = {
        "error": {
            "message": error.message,
            "type": error.answer.openai_type,
            "param": error.parameter,
            "code": error.answer.openai_code,
        }
    }
    return Reply(to_json(content), error.answer.openai_status)


def cohere_style(error: ServeError) -> Reply:
    """Writes an error as Cohere does."""
    return Reply(to_json({"message": error.message}), error.answer.openai_status)
