"""Texts that are generated: requests of the engine, and the event loop that waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from packhorse.generation.results import Generation
from packhorse.generation.session import GenerationSession
from packhorse.serve.errors import ClientGoneError, ServeError
from packhorse.text import TextModel
from packhorse.text.generation.calls import TextGeneration
from packhorse.text.generation.generator import Prompt as TextPrompt
from packhorse.text.generation.generator import TextRequest
from packhorse.text.generation.options import RequestOptions


class News:
    """Wakes who waits for requests of one session: one mailbox, which the event loop reads."""

    def __init__(self, session: GenerationSession) -> None:
        self._mailbox = session.mailbox()
        self._waiting: dict[int, asyncio.Event] = {}
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, request: TextRequest) -> tuple[int, asyncio.Event]:
        """(a number for `forget`; an event that is set when there are news)"""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._mailbox.fd, self._read)
        self._count += 1
        event = self._waiting[self._count] = asyncio.Event()
        event.set()  # there may be news from before anybody listened
        request.request.listen(self._mailbox, self._count)
        return self._count, event

    def forget(self, number: int, request: TextRequest) -> None:
        request.request.listen(None)
        del self._waiting[number]

    def _read(self) -> None:
        for number in self._mailbox.take():
            if (event := self._waiting.get(number)) is not None:
                event.set()

    def close(self) -> None:
        """Stops reading the mailbox. Called on the event loop."""
        if self._loop is not None:
            self._loop.remove_reader(self._mailbox.fd)
            self._loop = None


class Prompt(NamedTuple):
    """Text or conversation that a generated text continues.

    ids        makes its tokens, or a prompt of the text layer
    name       what messages call it
    continues  whether the text goes on with that of the prompt
    """

    ids: Callable[[TextGeneration], Any]
    name: str
    continues: bool


class Running:
    """One request that is being generated."""

    def __init__(self, request: TextRequest, news: News, n: int) -> None:
        self._request = request
        self._news = news
        self.n = n
        self.first_at: float | None = None  # when its first text came, of `time.monotonic`
        self._first_tokens = 0  # tokens of all sequences at `first_at`
        self._ended_at: float | None = None
        self._number, self._event = news.listen(request)
        self._gone = False

    async def pieces(self) -> AsyncGenerator[list[str], None]:
        """Yields the new text of each sequence, whenever there is any, and at the end.

        Raises ServeError ("backend"), and ClientGoneError after `leave`.
        """
        while True:
            self._event.clear()
            try:
                texts = self._request.read_all()
            except RuntimeError as error:
                raise ServeError("backend", f"the model failed: {error}") from error
            if any(texts) and self.first_at is None:
                self.first_at = time.monotonic()
                self._first_tokens = self._tokens()
            ended = self._request.ended
            if ended:
                self._ended_at = time.monotonic()
            if any(texts) or ended:
                yield texts
            if ended:
                return
            await self._event.wait()
            if self._gone:
                raise ClientGoneError

    def _tokens(self) -> int:
        """Tokens of all sequences together so far."""
        return self._request.request.so_far().usage.new_tokens

    @property
    def token_s(self) -> float | None:
        """Seconds that a token of a sequence took after its first text; None: the request has not
        ended, or nothing came after that."""
        if self.first_at is None or self._ended_at is None:
            return None
        tokens = (self._tokens() - self._first_tokens) / self.n
        return (self._ended_at - self.first_at) / tokens if tokens > 0 else None

    def leave(self) -> None:
        """Nobody waits for it any more: it ends soon."""
        self._gone = True
        self._request.request.cancel()
        self._event.set()

    def has_ended(self, sequence: int) -> bool:
        return self._request.has_ended(sequence)

    def so_far(self, sequence: int) -> Generation:
        """Text and tokens of a sequence that have been read."""
        return self._request.so_far(sequence)

    def close(self) -> None:
        """Cancels what still runs, and forgets the request."""
        self._request.request.cancel()
        self._news.forget(self._number, self._request)


class Engine:
    """A replica that generates."""

    def __init__(self, text: TextModel) -> None:
        assert text._generation is not None
        self.session = text.generation_session
        self.generation = text._generation
        self.news = News(self.session)
        self.active = 0  # requests that have begun and not ended

    def options(self, n: int, options: dict[str, Any]) -> RequestOptions:
        """Checks options, on a thread: grammars take their time. Raises ServeError."""
        with as_served():
            return self.generation.options(n, options)

    def submit(self, prompt: Prompt, options: RequestOptions) -> TextRequest:
        """Submits a prompt, on a thread: tokenizing takes its time. Raises ServeError."""
        with as_served():
            ids = prompt.ids(self.generation)
            if not isinstance(ids, TextPrompt):
                ids = self.generation.prompt(prompt.name, ids)
            return self.generation.submit(ids, options, continues=prompt.continues)


@contextmanager
def as_served() -> Iterator[None]:
    """Errors of the text layer and of the engine, as clients are told of them."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ServeError("unsupported", str(error)) from None
    except TypeError as error:
        raise ServeError("validation", str(error)) from None
    except ValueError as error:
        begins = "the prompt has" in str(error) or "the source has" in str(error)
        long = "expected at most" in str(error) and begins
        raise ServeError("too_long" if long else "validation", str(error)) from None
    except RuntimeError as error:
        if "queue is full" in str(error):
            raise ServeError("overloaded", str(error), retry_after=1) from None
        raise ServeError("backend", f"the model failed: {error}") from error
