"""Requests of text: prompts to tokens, tokens to text as they come."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from packhorse.generation.request import GenerationRequest
from packhorse.generation.results import FinishReason, GeneratedTokens, Generation, TokenText
from packhorse.packing import Int32Array
from packhorse.text.generation.detokenizer import Detokenizer, TextStream
from packhorse.text.generation.options import RequestOptions
from packhorse.text.generation.stop_strings import StopStrings
from packhorse.text.generation.token_texts import TokenTexts

if TYPE_CHECKING:
    from packhorse._native.generation import NativeMailbox
    from packhorse.generation.session import GenerationSession

FOREVER = 1e18  # seconds
_LOOK_MS = 500  # milliseconds between two looks at a request that there were no news of


class Prompt(NamedTuple):
    """Tokens to go on after. name: what messages call it. source: what an encoder reads, where the
    model has one; then `ids` begin the decoder's text."""

    name: str
    ids: Int32Array
    source: Int32Array | None = None


class _Sequence:
    """One sequence of a request, read to text."""

    def __init__(
        self,
        request: GenerationRequest,
        number: int,
        stream: TextStream | TokenTexts,
        stops: StopStrings,
        silent: frozenset[int],
        read: int,
    ) -> None:
        """`silent`: tokens that end the sequence, and stand for no text. `read`: number of those
        that an encoder reads."""
        self._read = read
        self._request, self._number = request, number
        self._stream, self._stops = stream, stops
        self._texts = stream if isinstance(stream, TokenTexts) else None
        self._silent = silent
        self._size = 0  # tokens that were read
        self._pieces: list[str] = []
        self._characters = 0  # in all pieces
        self._token_texts: list[TokenText] = []
        self._top_texts: list[list[TokenText]] = []
        self.ended = False

    def read(self) -> str:
        """The text that has come since the last time."""
        if self.ended:
            return ""
        finished = self._request.finish_reason(self._number)
        text = ""
        for token in self._request.poll(self._number):
            self._size += 1
            if token not in self._silent:
                text += self._stops.push(self._stream.push(token))
            elif self._texts is not None:
                self._texts.push_silent(token)
            if self._stops.found is not None:
                break
        if finished and self._stops.found is None:
            rest = self._stream.finish(cut=finished != "stop")
            text += self._stops.push(rest) + self._stops.finish()
        self.ended = bool(finished) or self._stops.found is not None
        if self.ended and self._texts is not None:
            self._texts.stop()
        self._pieces.append(text)
        self._characters += len(text)
        return text

    def result(self) -> Generation:
        """Result of a sequence that has ended: up to the token with which a stop string was
        complete."""
        found: GeneratedTokens = self._request.so_far(self._number)
        size = self._size
        reason: FinishReason = found.finish_reason if self._stops.found is None else "stop"
        fields = vars(found) | {
            "usage": replace(found.usage, prompt_tokens=found.usage.prompt_tokens + self._read),
            "ids": found.ids[:size],
            "logprobs": None if found.logprobs is None else found.logprobs[:size],
            "top_logprobs": None if found.top_logprobs is None else found.top_logprobs[:size],
            "finish_reason": reason,
        }
        if self._request.sampling.n == 1:  # text after a stop string is not given
            fields["usage"] = replace(fields["usage"], new_tokens=size)
        if self._texts is not None:
            self._find_token_texts(self._texts, found)
            fields["token_texts"] = list(self._token_texts)
            fields["top_texts"] = list(self._top_texts)
        return Generation(**fields, text="".join(self._pieces))

    def _find_token_texts(self, texts: TokenTexts, found: GeneratedTokens) -> None:
        count = self._size if self.ended else texts.count(self._characters)
        for i in range(len(self._token_texts), count):
            own = texts.added(i, self._characters)
            self._token_texts.append(own)
            row = found.top_logprobs[i] if found.top_logprobs else []
            self._top_texts.append(
                [own if id == found.ids[i] else texts.would_add(i, id) for id, _ in row]
            )


class TextRequest:
    """A request that was submitted, read to text."""

    def __init__(self, request: GenerationRequest, sequences: list[_Sequence], name: str) -> None:
        """`name`: what messages call the prompt."""
        self.request = request
        self._sequences = sequences
        self._name = name

    def read(self) -> str:
        """The first sequence's text since the last time; the others are read, too.

        Raises RuntimeError where the request failed.
        """
        return self.read_all()[0]

    def read_all(self) -> list[str]:
        """The text of each sequence since the last time. Raises as `read`."""
        texts = [sequence.read() for sequence in self._sequences]
        for i in range(len(texts)):
            if self.request.finish_reason(i) == "error":
                try:
                    self.request.result(i)
                except RuntimeError as error:
                    raise RuntimeError(f"{self._name}: {error}") from None
        if self.ended:
            self.request.cancel()  # a stop string may have ended it before the engine knows
        return texts

    @property
    def ended(self) -> bool:
        return all(sequence.ended for sequence in self._sequences)

    def has_ended(self, sequence: int) -> bool:
        """True if one sequence has ended."""
        return self._sequences[sequence].ended

    def so_far(self, sequence: int) -> Generation:
        """Result of one sequence so far; its finish_reason counts when it has ended."""
        return self._sequences[sequence].result()

    def results(self) -> list[Generation]:
        """Results of all sequences of a request that has ended."""
        return [sequence.result() for sequence in self._sequences]


def _wait(mailbox: NativeMailbox) -> list[int]:
    """Numbers of requests with news. Handlers of signals run meanwhile, and may raise."""
    poll = select.poll()
    poll.register(mailbox.fd, select.POLLIN)
    poll.poll(_LOOK_MS)
    return mailbox.take()


class TextStreaming(Iterator[str]):
    """The pieces of one text as they come: never half a character, and joined they are the text.

    When it has ended, `result` is the `Generation`. `close`, or the end of a `with` block, cancels
    what still runs; so does its being forgotten.
    """

    def __init__(
        self,
        session: GenerationSession,
        request: TextRequest,
        finish: Callable[[Generation], Generation] = lambda made: made,
    ) -> None:
        """`finish` makes the result of what was generated."""
        self._request = request
        self._finish = finish
        self._mailbox = session.mailbox()
        request.request.listen(self._mailbox)

    def __iter__(self) -> TextStreaming:
        return self

    def __next__(self) -> str:
        try:
            while not self._request.ended:
                if piece := self._request.read():
                    return piece
                if not self._request.ended:
                    _wait(self._mailbox)
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    async def pieces(self) -> AsyncIterator[str]:
        """Yields the pieces for `async for`; the event loop runs meanwhile."""
        import asyncio

        loop, news = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._mailbox.fd, news.set)
        try:
            while not self._request.ended:
                self._mailbox.take()
                news.clear()
                if piece := self._request.read():
                    yield piece
                elif not self._request.ended:
                    await news.wait()
        finally:
            loop.remove_reader(self._mailbox.fd)
            self.close()

    @property
    def result(self) -> Generation:
        """The text and its tokens, when it has ended. Raises RuntimeError before."""
        if not self._request.ended:
            raise RuntimeError("the text has not ended: read all its pieces first")
        return self._finish(self._request.results()[0])

    def close(self) -> None:
        """Cancels the request, unless it has ended."""
        self._request.request.listen(None)
        self._request.request.cancel()

    def __enter__(self) -> TextStreaming:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Generator:
    """Makes requests of prompts for one session, and texts of what comes."""

    def __init__(self, session: GenerationSession, detokenizer: Detokenizer) -> None:
        self._session = session
        self._detokenizer = detokenizer

    def token_texts(self) -> TokenTexts:
        """The text of a sequence, token by token."""
        return TokenTexts(self._detokenizer)

    def submit(
        self,
        prompt: Prompt,
        options: RequestOptions,
        continues: bool,
        timeout_s: float = FOREVER,
    ) -> TextRequest:
        """Submits a prompt.

        continues  whether the text goes on with that of the prompt, rather than being one of its
                   own
        timeout_s  as of `GenerationSession.submit`
        """
        ids = prompt.ids
        try:
            sampling = options.sampling(ids.size)
            # Tokens that the context or the cache has no room for are left out. Beams share pages,
            # and the session alone knows what they have room for.
            if options.default_length is not None and sampling.num_beams == 1:
                room = max(1, self._session.max_context - ids.size)
                sampling = replace(sampling, max_new_tokens=min(options.default_length, room))
            if prompt.source is None:
                request = self._session.submit(ids, sampling, timeout_s=timeout_s)
            else:
                source = prompt.source
                request = self._session.submit(ids, sampling, source=source, timeout_s=timeout_s)
        except ValueError as error:
            raise ValueError(f"{prompt.name}: {error}") from None
        ends = {*sampling.stop_ids, *(() if sampling.ignore_eos else self._session.eos_ids)}
        silent = frozenset(() if options.include_stop else ends)
        before = ids.tolist() if continues else []
        detokenizer = self._detokenizer.showing(options.shown)
        plain = sampling.logprobs is None
        sequences = [
            _Sequence(
                request,
                i,
                detokenizer.stream(before) if plain else TokenTexts(detokenizer, before),
                StopStrings(options.stops, include=options.include_stop),
                silent,
                0 if prompt.source is None else prompt.source.size - ids.size,
            )
            for i in range(sampling.n)
        ]
        return TextRequest(request, sequences, prompt.name)

    def stream(
        self,
        prompt: Prompt,
        options: RequestOptions,
        continues: bool,
        timeout_s: float,
        finish: Callable[[Generation], Generation] = lambda made: made,
    ) -> TextStreaming:
        """Arguments as of `submit` and `TextStreaming`."""
        request = self.submit(prompt, options, continues, timeout_s)
        return TextStreaming(self._session, request, finish)

    def run(
        self,
        prompts: Iterable[Prompt],
        options: RequestOptions,
        report: Callable[[int, int | None], object] | None,
        total: int | None,
        *,
        continues: bool,
    ) -> list[list[Generation]]:
        """All texts of any number of prompts, in order. An error or Ctrl-C cancels what
        still runs.

        report  called with the number of prompts whose texts have ended, and with `total`
        """
        self._session.check_open()
        mailbox = self._session.mailbox()
        running: dict[int, TextRequest] = {}
        found: dict[int, list[Generation]] = {}

        def read(numbers: Sequence[int]) -> None:
            for number in numbers:
                if (request := running.get(number)) is None:
                    continue
                request.read()
                if request.ended:
                    request.request.listen(None)
                    found[number] = running.pop(number).results()
                    if report is not None:
                        report(len(found), total)

        try:
            for number, prompt in enumerate(prompts):
                while len(running) >= self._session.max_queue:
                    read(_wait(mailbox) or list(running))
                running[number] = self.submit(prompt, options, continues)
                running[number].request.listen(mailbox, number)
            while running:
                read(_wait(mailbox) or list(running))
        finally:
            for request in running.values():
                request.request.listen(None)
                request.request.cancel()
        return [found[number] for number in sorted(found)]


def as_asked(results: Sequence[Generation], n: int, details: bool) -> Any:
    """Result of one prompt: a text or a list of `n` texts; with `details` Generations."""
    found: list[Any] = [one if details else one.text for one in results]
    return found if n > 1 else found[0]
