"""A native session of generation without a model, for tests of what is built upon it.

It has the methods of `packhorse._native.generation.NativeGenerationSession` and, like it, a thread
that makes the tokens. What a prompt leads to is a function of the test's: the tokens themselves,
whether chosen by chance under a mask or not.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from packhorse import TextModel
from packhorse.generation import Sampling
from packhorse.generation.session import GenerationSession
from packhorse.load_options import LoadOptions
from packhorse.text import TextTokenizer
from packhorse_weights.generation_files import GenerationFiles

Script = Callable[[list[int], int], Iterable[int]]  # (prompt, number of the sequence) -> tokens


class FakeMailbox:
    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._news: list[int] = []
        self._lock = threading.Lock()

    def post(self, number: int) -> None:
        with self._lock:
            if number not in self._news:
                self._news.append(number)
            os.eventfd_write(self.fd, 1)

    def take(self) -> list[int]:
        with self._lock:
            if self._news:
                os.eventfd_read(self.fd)
            news, self._news = self._news, []
            return news

    def __del__(self) -> None:
        os.close(self.fd)


class FakeRequest:
    """Each sequence gives its tokens until it ends as one of the engine does."""

    def __init__(
        self, session: FakeNative, prompt: list[int], sampling: Sampling, script: Script
    ) -> None:
        self.sampling = sampling
        self._session = session
        self._prompt = prompt
        self._changed = threading.Condition()
        self._sources = [iter(self._tokens(script, i)) for i in range(sampling.n)]
        self._ids: list[list[int]] = [[] for _ in self._sources]
        self._given = [0 for _ in self._sources]
        self._reasons = ["" for _ in self._sources]
        self._error = ""
        self._mailbox: tuple[FakeMailbox, int] | None = None
        self._most = sampling.max_new_tokens
        if self._most is None:
            self._most = session.max_context - len(prompt)
        self._masks = [sampling.mask.fork() if sampling.mask else None for _ in self._sources]
        eos = () if sampling.ignore_eos else session.eos_ids
        self._ends = {*eos, *sampling.stop_ids}

    def _tokens(self, script: Script, number: int) -> Iterator[int]:
        if self.sampling.mask is None:
            yield from script(self._prompt, number)
            return
        random_ = random.Random(f"{self.sampling.seed} {number}")
        while (allowed := self._allowed(number)) != []:
            yield random_.choice(allowed)

    def _allowed(self, number: int) -> list[int]:
        words = np.zeros(-(-self._session.vocab_size // 32), np.uint32)
        every = list(range(self._session.vocab_size))
        mask = self._masks[number]
        if mask is None or not mask.fill(memoryview(words)):
            return every
        return [i for i in every if words[i // 32] >> np.uint32(i % 32) & 1]

    def step(self) -> bool:
        """One more token of each sequence; whether any still runs."""
        with self._changed:
            for i, source in enumerate(self._sources):
                if not self._reasons[i]:
                    self._advance(i, source)
            self._changed.notify_all()
            mailbox = self._mailbox
        if mailbox is not None:
            mailbox[0].post(mailbox[1])
        return not all(self._reasons)

    def _advance(self, i: int, source: Iterator[int]) -> None:
        assert self._most is not None
        if len(self._ids[i]) >= self._most:
            self._reasons[i] = "length"
            return
        try:
            token = next(source, None)
            if token is None:
                self._reasons[i] = "stop"
                return
            mask = self._masks[i]
            if mask is not None:
                mask.accept(token)
        except Exception as error:
            self._reasons[i], self._error = "error", f"{type(error).__name__}: {error}"
            return
        self._ids[i].append(token)
        if token in self._ends:
            self._reasons[i] = "stop"
        elif len(self._ids[i]) >= self._most:
            self._reasons[i] = "length"

    def next(self, sequence: int, timeout_s: float | None = None) -> list[int]:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    len(self._ids[sequence]) > self._given[sequence]
                    or self._reasons[sequence] != ""
                ),
                timeout_s,
            )
            fresh = self._ids[sequence][self._given[sequence] :]
            self._given[sequence] += len(fresh)
            return fresh

    def wait(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: all(self._reasons), timeout_s)

    def cancel(self) -> None:
        with self._changed:
            if not all(self._reasons):
                self._session.cancelled += 1
            self._reasons = [reason or "cancelled" for reason in self._reasons]
            self._changed.notify_all()

    @property
    def num_sequences(self) -> int:
        return len(self._ids)

    def finish_reason(self, sequence: int) -> str:
        return self._reasons[sequence]

    def result(self, sequence: int) -> tuple[Any, ...]:
        with self._changed:
            ids = list(self._ids[sequence])
            count = self.sampling.logprobs or 0
            logprobs = [-float(i) for i in range(len(ids))]
            top = [(rank, -float(rank)) for _ in ids for rank in range(count)]
            return ids, logprobs, top, 0.0, self._reasons[sequence], self._error

    def prompt_logprobs(self) -> tuple[list[float], list[tuple[int, float]]]:
        return [-1.0] * (len(self._prompt) - 1), []

    def usage(self) -> tuple[int, int, int]:
        return len(self._prompt), 0, sum(map(len, self._ids))

    def listen(self, mailbox: FakeMailbox, number: int) -> None:
        self._mailbox = mailbox, number
        mailbox.post(number)

    def stop_listening(self) -> None:
        self._mailbox = None


class FakeNative:
    """`script` says what follows a prompt. `cancelled` counts requests that were cancelled before
    their end; `submitted` are all requests."""

    def __init__(
        self,
        script: Script,
        vocab_size: int,
        max_context: int = 512,
        eos_ids: Sequence[int] = (),
        pause_s: float = 0.0,
    ) -> None:
        self.vocab_size, self.max_context, self.eos_ids = vocab_size, max_context, tuple(eos_ids)
        self._script, self._pause_s = script, pause_s
        self.cancelled = 0
        self.submitted: list[FakeRequest] = []
        self._running: list[FakeRequest] = []
        self._news = threading.Condition()
        self._closed = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._running or self._closed)
                if self._closed:
                    break
                running = list(self._running)
            for request in running:
                if not request.step():
                    with self._news:
                        self._running.remove(request)
            threading.Event().wait(self._pause_s)
        for request in self._running:
            request.cancel()
            request.step()

    max_source = 0  # it has no encoder

    def submit(
        self,
        ids: npt.NDArray[np.int32],
        sampling: Sampling,
        timeout_s: float,
        source: npt.NDArray[np.int32] | None = None,
    ) -> FakeRequest:
        self.check_open()
        assert source is None
        if len(ids) > self.max_context:
            raise ValueError(f"the prompt has {len(ids)} tokens, the context {self.max_context}")
        request = FakeRequest(self, ids.tolist(), sampling, self._script)
        with self._news:
            self.submitted.append(request)
            self._running.append(request)
            self._news.notify_all()
        return request

    def submit_all(
        self,
        prompts: list[npt.NDArray[np.int32]],
        sampling: Sampling,
        timeout_s: float,
        submitted_to: deque[FakeRequest],
        sources: Sequence[npt.NDArray[np.int32]] = (),
    ) -> None:
        assert not sources
        submitted_to.extend(self.submit(ids, sampling, timeout_s) for ids in prompts)

    def mailbox(self) -> FakeMailbox:
        return FakeMailbox()

    def memory_plan(self) -> tuple[Any, ...]:
        none = (0, [])
        plan = (100, []), (20, [("ids", 0, 20)]), none, (4096, [])
        return *plan, none, none, none, 64, 64

    def stats(self) -> dict[str, int]:
        return {"running": len(self._running)}

    def check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this session was closed, or never loaded: load another one")

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()


def fake_session(script: Script, vocab_size: int, **options: Any) -> GenerationSession:
    """A session whose engine is `FakeNative`."""
    native: Any = FakeNative(script, vocab_size, **options)
    given = LoadOptions(max_queue=8).of_session("float32", generates=True)
    config = {
        "family": "fake",
        "hidden_size": 8,
        "vocab_size": vocab_size,
        "max_seqlen": native.max_context,
        "positions": {},
    }
    return GenerationSession(native, config, given, native.eos_ids)


def byte_level() -> Any:
    """A tokenizer of GPT-2's kind, with few merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "tr", "ue", "true", "Ad"])}
    merges = [("t", "r"), ("u", "e"), ("tr", "ue"), ("A", "d")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def text_model_of_chance(tokenizer: Any = None) -> TextModel:
    """Draws any token that is allowed, the same ones for the same seed. Its "</s>" ends a text."""
    made = byte_level() if tokenizer is None else tokenizer
    made.add_special_tokens(["</s>"])
    with tempfile.TemporaryDirectory() as folder:
        made.save(str(Path(folder) / "tokenizer.json"))
        ours = TextTokenizer.load(folder)
    end = ours.id_of("</s>")
    assert end is not None
    # The model's table has more entries than the tokenizer, as those of real models have.
    session = session_of_chance(end + 40, end)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    files = GenerationFiles((end,), chat_templates={"default": template})
    return TextModel(session, ours, files=files)


def session_of_chance(vocab_size: int = 100, end: int = 99) -> GenerationSession:
    """Draws tokens below `end`, which would end a text."""

    def draw(prompt: list[int], number: int) -> Iterator[int]:
        random_ = random.Random(f"{prompt} {number}")
        while True:
            yield random_.randrange(end)

    return fake_session(draw, vocab_size, eos_ids=[end], max_context=4000)
