"""Speech on its way to text: a thread runs the audio, and the event loop waits for its news."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

from packhorse_weights import find_model

from packhorse.audio import AudioModel, Language, Progress, Segment, Transcription
from packhorse.load_options import LoadOptions, ModelPath
from packhorse.serve.errors import ServeError
from packhorse.text import TextModel
from packhorse.text.tokenization.tokenizer import TextTokenizer

News = Segment | Language | Progress


class SpeechModel(TextModel):
    """A model of speech among those that a server has."""

    def __init__(self, audio: AudioModel, tokenizer: TextTokenizer) -> None:
        super().__init__(audio.session, tokenizer)
        self.audio = audio

    @classmethod
    def load_speech(cls, path: ModelPath, device: str, **options: Any) -> SpeechModel:
        """As `AudioModel.load`; options of models of text alone are left out."""
        known = {one.name for one in fields(LoadOptions)}
        asked = {name: value for name, value in options.items() if name in known}
        audio = AudioModel.load(path, device, progress=options.get("progress"), **asked)
        try:
            return cls(audio, TextTokenizer.load(find_model(path, asked.get("revision"))))
        except BaseException:
            audio.close()
            raise


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
            stream = self._model.stream(self._audio, **self._options)
            for event in stream:
                if self._left.is_set():
                    return
                self._put(event)
            self._put(None)
        except BaseException as error:
            self._put(error)

    async def events(self) -> AsyncIterator[News]:
        """News of the text, as they come. Raises ServeError."""
        while True:
            left = self._until - self._loop.time()
            try:
                news = await asyncio.wait_for(self._news.get(), max(0.0, left))
            except asyncio.TimeoutError:
                self.leave()
                raise ServeError("timeout", "the audio was not transcribed in time") from None
            if news is None:
                return
            if isinstance(news, ValueError | TypeError | ModuleNotFoundError):
                raise ServeError("validation", str(news))
            if isinstance(news, BaseException):
                raise ServeError("backend", f"the model failed: {news}") from news
            yield news

    async def whole(self) -> Transcription:
        """The transcription, when it is done. Raises ServeError."""
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
        """Nobody waits for it any more: it ends with its window."""
        self._left.set()
