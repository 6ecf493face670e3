"""A model of speech that is served, and its audios: a thread runs each, and the event loop waits
for its news."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

from packhorse.audio import AudioModel, Language, Progress, Segment, Transcription
from packhorse.serve.errors import ClientGoneError, ServeError
from packhorse.serve.models.served import Served
from packhorse.serve.models.tokenizing import TokenizerPool
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.text import TextModel

_MOST_AUDIOS = 256  # that are transcribed at once; each has a thread, and the bytes of its file
_LOOK_S = 0.02  # seconds between two looks at a model that is to be closed
News = Segment | Language | Progress


class Hearing:
    """One audio that is transcribed. Used on the event loop.

    deadline_s: seconds after which it is given up
    """

    def __init__(
        self, model: AudioModel, audio: bytes, options: dict[str, Any], deadline_s: float
    ) -> None:
        self._model, self._audio, self._options = model, audio, options
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[News | BaseException | None] = asyncio.Queue()
        self._left = threading.Event()
        self._until = self._loop.time() + deadline_s
        self._thread = threading.Thread(target=self._run, name="packhorse-speech", daemon=True)
        self._thread.start()

    def _put(self, news: News | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)
        except RuntimeError:  # the loop has ended
            self._left.set()

    def _run(self) -> None:
        try:
            for event in self._model.stream(self._audio, **self._options):
                if self._left.is_set():
                    return
                self._put(event)
            self._put(None)
        except BaseException as error:
            self._put(error)

    async def events(self) -> AsyncIterator[News]:
        """News of the text, as they come. Raises ServeError, and ClientGoneError after `leave`."""
        while True:
            left = self._until - self._loop.time()
            try:
                news = await asyncio.wait_for(self._news.get(), max(0.0, left))
            except asyncio.TimeoutError:
                self.leave()
                raise ServeError("timeout", "the audio was not transcribed in time") from None
            if news is None:
                return
            if isinstance(news, ValueError | TypeError | ModuleNotFoundError | FileNotFoundError):
                raise ServeError("validation", str(news))
            if isinstance(news, ClientGoneError):
                raise news
            if isinstance(news, BaseException):
                raise ServeError("backend", f"the model failed: {news}") from news
            yield news

    async def whole(self) -> Transcription:
        """The transcription, when it is done. Raises as `events`."""
        segments: list[Segment] = []
        language, seconds = Language("en", 0.0), 0.0
        async for one in self.events():
            if isinstance(one, Segment):
                segments.append(one)
            elif isinstance(one, Language):
                language = one
            else:
                seconds = one.seconds
        text = "".join(one.text for one in segments).strip()
        return Transcription(text, tuple(segments), *language, seconds)

    def leave(self) -> None:
        """Nobody waits for it any more: it ends with its window. Called on the event loop."""
        self._left.set()
        self._news.put_nowait(ClientGoneError())


class ServedSpeech(Served):
    """A model of speech under a name, loaded once for each device. Made by `load_model`."""

    def __init__(
        self,
        settings: ModelSettings,
        server: Settings,
        replicas: Sequence[AudioModel],
        pool: TokenizerPool,
        metrics: Metrics,
    ) -> None:
        self._hearing: list[Hearing] = []
        super().__init__(
            settings,
            server,
            replicas,
            pool,
            metrics,
            make_runner=None,
            warm_up=lambda _model: (0, 0.0),
            methods=["transcribe"],
        )

    @property
    def text(self) -> TextModel:
        """Raises ServeError: it takes no texts."""
        raise ServeError("unsuited", f"model {self.name!r} hears audio and takes no texts")

    def hear(self, audio: bytes, options: dict[str, Any], deadline_s: float) -> Hearing:
        """Begins to transcribe an audio; `heard` ends that. Raises ServeError where there are too
        many."""
        if len(self._hearing) >= _MOST_AUDIOS:
            raise ServeError("overloaded", "too many audios are being transcribed", retry_after=1)
        model = self.replicas[len(self._hearing) % len(self.replicas)]
        found = Hearing(model, audio, options, deadline_s)
        self._hearing.append(found)
        return found

    def heard(self, hearing: Hearing) -> None:
        """The audio is done, or nobody waits for it any more."""
        hearing.leave()
        self._hearing.remove(hearing)

    async def close(self) -> None:
        """Waits for the audios that run, and frees the model."""
        self.queue.close()
        while self._hearing:
            await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(self._free)
