"""Many audios side by side: each is a generator that asks for decodings, and all of these run
together in the session's engine."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from packhorse.audio.results import Segment
from packhorse.audio.transcriber import Ask, Language, Progress, Steps

if TYPE_CHECKING:
    from packhorse.generation.request import GenerationRequest
    from packhorse.generation.session import GenerationSession

_LOOK_S = 1.0  # between two looks at requests whose news may have been missed


class News(NamedTuple):
    """An event of the audio with this number; None: it is done."""

    number: int
    event: Language | Segment | Progress | None


class _Running:
    """An audio whose generator waits for decodings."""

    def __init__(self, number: int, steps: Steps) -> None:
        self.number, self.steps = number, steps
        self.requests: list[GenerationRequest] = []

    @property
    def ready(self) -> bool:
        return all(one.wait(0) for one in self.requests)


def run_all(
    session: GenerationSession, makers: Iterable[Callable[[], Steps]], at_once: int
) -> Iterator[News]:
    """Runs the generators that `makers` make, up to `at_once` at the same time, and gives what they
    give as it comes. A closed iterator, or an error, cancels what runs.

    Raises what a generator raises, and RuntimeError where a decoding failed.
    """
    mailbox = session.mailbox()
    waiting = enumerate(makers)
    running: dict[int, _Running] = {}
    news: deque[News] = deque()

    def submit(one: _Running, asked: list[Ask]) -> None:
        one.requests = []
        for ask in asked:
            request = session.submit_features(
                ask.prompt, ask.frames, ask.sampling, timeout_s=_FOREVER
            )
            one.requests.append(request)
            request.listen(mailbox, one.number)

    def go_on(one: _Running, results: object = None) -> None:
        """Runs a generator to its next decodings."""
        try:
            event = one.steps.send(results)  # type: ignore[arg-type]
            while not isinstance(event, list):
                news.append(News(one.number, event))
                event = one.steps.send(None)  # type: ignore[arg-type]
        except StopIteration:
            news.append(News(one.number, None))
            running.pop(one.number, None)
            return
        submit(one, event)

    try:
        while True:
            while len(running) < at_once and (found := next(waiting, None)) is not None:
                one = _Running(found[0], found[1]())
                running[one.number] = one
                go_on(one)
            while news:
                yield news.popleft()
            if not running:
                return
            select.select([mailbox.fd], [], [], _LOOK_S)
            for key in sorted(mailbox.take()) or list(running):
                waiter = running.get(key)
                if waiter is None or not waiter.ready:
                    continue
                results = [request.results() for request in waiter.requests]
                for request in waiter.requests:
                    request.listen(None)
                go_on(waiter, results)
    finally:
        for one in running.values():
            for request in one.requests:
                request.listen(None)
                request.cancel()
            one.steps.close()


_FOREVER = 1e18  # seconds
