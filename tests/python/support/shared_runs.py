"""Runs of sessions that wait for the test: so that requests of other threads gather meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from checkpoints import GOLDEN
from packhorse import EncoderSession, TextModel
from tiny_tokenizer import NO_TYPES, SPECIAL, make_tokenizer, with_tokenizer

SECONDS = 60  # until a test that hangs fails


class Runs:
    """Records the runs of all sessions: (number of sequences, outputs), and how many tokens each
    had. The first one that begins after `hold` ends when `release` is called; `before` is called
    with the number of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[int, Any]] = []
        self.tokens: list[int] = []
        self.before: Callable[[int], object] = lambda number: None
        self._held = False
        self._entered, self._free = threading.Event(), threading.Event()
        run = EncoderSession.run

        def watched(session: EncoderSession, batch: Any, **options: Any) -> Any:
            self.done.append((batch.num_sequences, options["outputs"]))
            self.tokens.append(batch.num_tokens)
            self.before(len(self.done))
            result = run(session, batch, **options)
            if self._held:
                self._held = False
                self._entered.set()
                assert self._free.wait(SECONDS)
            return result

        monkeypatch.setattr(EncoderSession, "run", watched)

    @property
    def sequences(self) -> list[int]:
        return [count for count, _ in self.done]

    def hold(self, call: Callable[[], object]) -> Future[Any]:
        """Calls `call` in a thread, and comes back when its run is held."""
        self.done.clear()
        self.tokens.clear()
        self._held = True
        self._entered.clear()
        self._free.clear()
        future = in_thread(call)
        assert self._entered.wait(SECONDS)
        return future

    def release(self) -> None:
        self._free.set()


def in_thread(call: Callable[[], object]) -> Future[Any]:
    """Calls `call` in a thread of its own."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def wait_for_callers(model: TextModel, count: int) -> None:
    """Waits until so many callers lead or wait."""
    end = time.monotonic() + SECONDS
    while len(model._runner._batcher._parts) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def gather(model: TextModel, calls: list[Callable[[], object]], waiting: int) -> list[Future[Any]]:
    """Has each of `calls` wait in a thread of its own, in this order, behind `waiting` others."""
    found = []
    for i, call in enumerate(calls, waiting + 1):
        found.append(in_thread(call))
        wait_for_callers(model, i)
    return found


def load_text_model(folder: Path, name: str, device: str = "cpu", **options: Any) -> TextModel:
    """A tiny model of the golden files with a tokenizer, in small batches."""
    made = with_tokenizer(
        GOLDEN / name, folder / name, config={} if name.startswith("bert") else NO_TYPES
    )
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    tokenizer.save(str(made / "tokenizer.json"))
    return TextModel.load(made, device, **{"max_tokens": 256, "threads": 2, **options})


def embeds(model: TextModel, texts: list[Any]) -> list[Callable[[], object]]:
    """A call for each text."""
    return [lambda text=text: model.embed(text) for text in texts]
