"""One request and its answer, as ASGI brings and takes them."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from packhorse.serve.errors import ClientGoneError, ServeError
from packhorse.serve.http.body import SMALL_BODY, LongBody, read_json
from packhorse.serve.http.json_parts import json_parts, to_json
from packhorse.serve.http.service import Service
from packhorse.serve.models.image_inputs import ImageInput
from packhorse.serve.models.queued_request import QueuedRequest, Waiting
from packhorse.serve.models.served import AnyTask, Outcome, Served
from packhorse.serve.models.weight import MUCH, weight

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Found = TypeVar("Found")

HTTP_CONNECTION = "packhorse.wire"  # the extension of ASGI that the server's own connections have
SURPLUS = "packhorse.surplus"  # key in the scope of a connection that is one too many
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_MOST_QUERY_FIELDS = 100
_MOST_AT_ONCE = 262_144  # bytes that are sent by one write
_SMALL_BODY = 65_536  # bytes that every request may have: the limit of connections bounds them
_URLS = ("http:", "https:")
_WATCH_AFTER_S = 0.02  # requests that take longer are cancelled when their client goes away


_PROCESS = secrets.token_hex(6)
_numbers = itertools.count()


def next_id() -> str:
    """A name that no other request has."""
    return f"{_PROCESS}{next(_numbers):010x}"


class Done(NamedTuple):
    """Work of the models for a request, for metrics and logs.

    method  "single", or "batch" where it came as a list
    kind    of the metrics: "embed", "predict" or None
    at      when it was done, of `time.monotonic`
    """

    method: str
    kind: str | None
    texts: int
    at: float
    work: QueuedRequest

    @property
    def usage(self) -> dict[str, Any]:
        """Fields of the log."""
        return {
            "texts": self.texts,
            "tokens": self.work.tokens,
            "tokenization_ms": round(self.work.tokenize_s * 1e3, 3),
            "queue_ms": round(self.work.queue_s * 1e3, 3),
            "inference_ms": round(self.work.run_s * 1e3, 3),
        }


class Exchange:
    """A request, who sent it, and what is known about it so far."""

    __slots__ = (
        "_body_bytes",
        "_received_by",
        "cache_salt",
        "client",
        "deadline",
        "done",
        "headers",
        "model",
        "receive",
        "request_id",
        "scope",
        "service",
        "size",
        "started",
        "usage",
        "wire",
    )

    def __init__(self, service: Service, scope: Scope, receive: Receive) -> None:
        self.service = service
        self.scope = scope
        self.receive = receive
        extensions = scope.get("extensions")
        self.wire: Any = None if extensions is None else extensions.get(HTTP_CONNECTION)
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else next_id()
        settings = service.settings
        self.started: float = time.monotonic() if self.wire is None else self.wire.began
        self.deadline = self.started + settings.request_timeout_s
        self._received_by = min(self.deadline, self.started + settings.receive_timeout_s)
        self._body_bytes = 0  # bytes that count for the limit of all bodies
        address = scope.get("client")
        self.client: str = address[0] if address else "-"
        self.size = 0  # bytes of its body
        self.cache_salt = 0  # requests of one salt share cached prefixes (`Sampling.cache_salt`)
        self.model = ""  # the name of the model that is asked, for metrics and logs
        self.usage: dict[str, Any] = {}  # fields of the log
        self.done: Done | None = None  # work of the models

    @property
    def id_header(self) -> tuple[bytes, bytes]:
        """The header of every answer that names the request."""
        return b"x-request-id", self.request_id.encode("latin-1")

    def query(self) -> dict[str, str]:
        """Fields after the question mark of the address; of a name the last value. Raises
        ServeError."""
        text = self.scope.get("query_string", b"").decode("latin-1")
        try:
            return dict(parse_qsl(text, max_num_fields=_MOST_QUERY_FIELDS))
        except ValueError:
            raise ServeError(
                "validation", f"the address has more than {_MOST_QUERY_FIELDS} fields"
            ) from None

    @property
    def created(self) -> int:
        """The time at which the request came, in seconds since 1970."""
        return int(time.time() - (time.monotonic() - self.started))

    async def body(self, limit: int | None = None) -> bytes:
        """The whole body. Raises ServeError for more than `limit` bytes (None: `payload_limit`),
        ClientGoneError."""
        limit = self.service.settings.payload_limit if limit is None else limit
        announced = self.headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            raise _too_large(int(announced), limit)

        def check(size: int) -> None:
            if size > limit:
                raise _too_large(size, limit)
            self._keep(size)

        whole: bytes | None = None if self.wire is None else self.wire.body()
        if whole is not None:
            check(len(whole))
            return whole
        coming = self._parts(check) if self.wire is None else self.wire.rest_of_body(check)
        left = max(0.0, self._received_by - time.monotonic())
        try:
            whole = await asyncio.wait_for(coming, left)
        except asyncio.TimeoutError:
            self.service.metrics.refused("slow_request")
            raise ServeError("timeout", "the body did not come in time") from None
        if whole is None:
            raise ClientGoneError
        return whole

    async def _parts(self, check: Callable[[int], None]) -> bytes | None:
        """The body as ASGI brings it, part by part; None: the client has gone away."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            check(size)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _keep(self, size: int) -> None:
        """Counts so much of the body, until `release`. Raises ServeError where all bodies together
        would be too long."""
        more = size - _SMALL_BODY - self._body_bytes
        if more > 0:
            self.service.bodies.take(more)
            self._body_bytes += more

    def release(self) -> None:
        """The request has been answered: its body counts no more."""
        if self._body_bytes:
            self.service.bodies.give_back(self._body_bytes)
            self._body_bytes = 0

    async def json(self) -> dict[str, Any]:
        """The body, a JSON object. Raises ServeError."""
        return await self.json_of(await self.body())

    async def json_of(self, body: bytes) -> dict[str, Any]:
        """A body as a JSON object. Raises ServeError."""
        if len(body) <= SMALL_BODY:
            found = read_json(body)
        else:
            self.service.tidying.soon()
            long = LongBody(body, self.service.settings.max_body_values)
            found = long.read() if long.is_quick else await self.service.on_thread(long.read)
        self.size = len(body)
        if not isinstance(found, dict):
            kind = type(found).__name__
            raise ServeError("validation", f"the body is a JSON {kind}, expected an object")
        return found

    async def run(
        self,
        model: Served,
        task: AnyTask,
        items: list[Any],
        kind: str | None,
        *,
        single: bool = False,
    ) -> Outcome:
        """The results of a task, which are counted when they have been sent. Raises ServeError,
        ClientGoneError.

        kind    "embed", "predict" or None, for the metrics
        single  whether the request has one text that is not in a list
        """
        method = "single" if single else "batch"
        self.model = model.name
        self.service.metrics.begin(method)
        outcome = await model.run(task, items, self.client, self.deadline, self._wait)
        self.done = Done(method, kind, len(items), time.monotonic(), outcome.work)
        return outcome

    async def fetched(self, images: Sequence[ImageInput]) -> list[ImageInput]:
        """The images, of which those that are URLs are fetched. Raises ServeError."""
        service = self.service
        urls = {
            i: one.content
            for i, one in enumerate(images)
            if isinstance(one.content, str) and one.content[:8].lower().startswith(_URLS)
        }
        for i, url in urls.items():  # before any of them is asked
            service.image_urls.check(images[i].name, url)
        if not urls:
            return list(images)
        loop, fetch = asyncio.get_running_loop(), service.image_urls.fetch
        asked = [
            loop.run_in_executor(service.fetchers, fetch, images[i].name, url)
            for i, url in urls.items()
        ]
        try:
            left = max(0.0, self.deadline - time.monotonic())
            found = await asyncio.wait_for(asyncio.gather(*asked), left)
        except asyncio.TimeoutError:
            raise ServeError("timeout", "the images did not come in time") from None
        finally:
            for one in asked:
                one.cancel()
        size = sum(map(len, found))
        service.bodies.take(size)
        self._body_bytes += size
        contents = dict(zip(urls, found, strict=True))
        return [
            one._replace(content=contents[i]) if i in contents else one
            for i, one in enumerate(images)
        ]

    async def on_thread(self, find: Callable[[], Found]) -> Found:
        """Runs a function that tokenizes texts of the body, on a thread beside the event
        loop, within the time of the request. Raises ServeError, also where too much waits already;
        ClientGoneError where the client goes away."""
        threads = self.service.threads
        call = threads.submit(find, self.size, self.deadline)
        try:
            await self._wait(call)
        except BaseException:
            threads.cancel(call)
            raise
        found: Found = call.result
        return found

    async def _wait(self, work: Waiting) -> None:
        """Waits until the work is done. Raises ServeError; ClientGoneError where the client goes
        away."""
        deadlines = self.service.deadlines
        deadlines.add(work)
        try:
            if self.wire is None:
                await self._wait_as_asgi(work)
                return
            self.wire.when_lost(work.leave)
            try:
                await work.future
            finally:
                self.wire.when_lost(None)
        finally:
            deadlines.discard(work)

    async def _wait_as_asgi(self, work: Waiting) -> None:
        loop = work.loop
        watching: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            _WATCH_AFTER_S, lambda: watching.append(loop.create_task(self._watch(work)))
        )
        try:
            await work.future
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()

    async def _watch(self, work: Waiting) -> None:
        """Fails the work when its client goes away."""
        await self.disconnected()
        work.leave()

    async def disconnected(self) -> None:
        """Returns when the client has gone away. Only when the body has been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _too_large(size: int, limit: int) -> ServeError:
    return ServeError("too_large", f"the body has {size} bytes or more, at most {limit} are taken")


Headers = list[tuple[bytes, bytes]]


class Reply:
    """A response whose body is there as a whole."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        body: bytes,
        status: int = 200,
        headers: Headers | None = None,
        content_type: bytes = b"application/json",
    ) -> None:
        self.body = body
        self.status = status
        self.headers = headers or []
        self.content_type = content_type

    async def send(self, exchange: Exchange, send: Send) -> None:
        length = b"%d" % len(self.body)
        fixed = [(b"content-type", self.content_type), (b"content-length", length)]
        headers = [*fixed, *self.headers, exchange.id_header]
        if exchange.wire is not None and exchange.wire.respond(self.status, headers, self.body):
            return
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class LongReply(Reply):
    """A response of much JSON, which is written on a thread and sent part by part."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Iterable[bytes], status: int, headers: Headers | None) -> None:
        super().__init__(b"", status, headers)
        self._parts = parts

    async def send(self, exchange: Exchange, send: Send) -> None:
        exchange.service.tidying.soon()
        parts = await exchange.service.on_thread(lambda: list(self._parts))
        length = b"%d" % sum(map(len, parts))
        fixed = [(b"content-type", self.content_type), (b"content-length", length)]
        headers = [*fixed, *self.headers, exchange.id_header]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json_reply(content: Any, status: int = 200, headers: Headers | None = None) -> Reply:
    if weight(content) > MUCH:
        return LongReply(json_parts(content), status, headers)
    return Reply(to_json(content), status, headers)


def parts_reply(parts: list[bytes]) -> Reply:
    """A reply of JSON that is written already."""
    if sum(map(len, parts)) > _MOST_AT_ONCE:
        return LongReply(parts, 200, None)
    return Reply(b"".join(parts))


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
