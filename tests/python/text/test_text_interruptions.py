"""TextModel: callers that share batches, when one of them is interrupted or forks."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse import TextModel
from shared_runs import (
    SECONDS,
    Runs,
    embeds,
    gather,
    in_thread,
    load_text_model,
    wait_for_callers,
)
from tiny_tokenizer import with_tokenizer

pytest.importorskip("tokenizers")


class HandlerError(Exception):
    """An exception of a signal's handler, unlike those of Python itself."""


@pytest.fixture
def model(tmp_path: Path, device: str) -> TextModel:
    return load_text_model(tmp_path, "bert-gelu", device)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.fixture
def on_ctrl_c() -> Iterator[Callable[[type[BaseException]], None]]:
    """Has SIGINT raise an exception in the main thread."""
    before = signal.getsignal(signal.SIGINT)

    def install(kind: type[BaseException]) -> None:
        def handler(_number: int, _frame: FrameType | None) -> None:
            raise kind

        signal.signal(signal.SIGINT, handler)

    yield install
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, HandlerError])
def test_ctrl_c_of_a_caller_that_waits(
    model: TextModel, runs: Runs, on_ctrl_c: Any, kind: type[BaseException]
) -> None:
    expected = model.embed("a")
    first = runs.hold(lambda: model.embed("a"))
    before, after = [], []

    def interrupt() -> None:
        before.extend(gather(model, embeds(model, ["a"]), 2))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    on_ctrl_c(kind)
    interrupting = in_thread(lambda: wait_for_callers(model, 2) or interrupt())
    with pytest.raises(kind):
        model.embed("b")
    interrupting.result(SECONDS)
    after.extend(gather(model, embeds(model, ["a"]), 2))
    runs.release()
    for found in [first, *before, *after]:
        np.testing.assert_array_equal(found.result(SECONDS), expected)
    assert runs.sequences == [1, 2]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, HandlerError])
def test_ctrl_c_of_a_caller_that_runs_for_others(
    model: TextModel, runs: Runs, on_ctrl_c: Any, kind: type[BaseException]
) -> None:
    expected = model.embed("a")
    first = runs.hold(lambda: model.embed("a"))
    others: list[Any] = []

    def fill_up() -> None:
        wait_for_callers(model, 2)
        others.extend(gather(model, embeds(model, ["a"] * 4), 2))
        runs.release()

    def interrupt(number: int) -> None:
        if number == 2:
            signal.raise_signal(signal.SIGINT)

    on_ctrl_c(kind)
    runs.before = interrupt
    filling = in_thread(fill_up)
    with pytest.raises(kind):
        model.embed("b")
    filling.result(SECONDS)
    for found in [first, *others]:
        np.testing.assert_array_equal(found.result(SECONDS), expected)
    assert runs.sequences == [1, 5, 4]


def test_handlers_may_not_run_what_they_interrupt(
    model: TextModel, runs: Runs, tmp_path: Path
) -> None:
    other = load_text_model(tmp_path / "other", "bert-gelu")
    found: dict[str, Any] = {}

    def handle(_number: int, _frame: FrameType | None) -> None:
        found["other"] = other.embed("a")
        try:
            model.embed("a")
        except RuntimeError as error:
            found["error"] = str(error)

    runs.before = lambda number: signal.raise_signal(signal.SIGUSR1) if number == 1 else None
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        result = model.embed("a")
    finally:
        signal.signal(signal.SIGUSR1, before)
    np.testing.assert_array_equal(result, found["other"])
    assert "signal handler" in found["error"]


FILES = ("text/batching.py", "text/parts.py")
LEADING = ("_lead", "_choose", "_run_alone", "_run_together", "_leave", "wake")


class Injected(BaseException):
    """Raised by `inject`."""


def inject(number: int, raised: list[str]) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises at one of the lines that are run while a caller leads and hands
    on, and says at which. No line counts again in the same frame: a signal's handler cannot run
    between the body of a `with` and its end, which a tracer sees as the line of the `with`."""
    seen: set[tuple[FrameType, int]] = set()

    def step(frame: FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(FILES) or code.co_name not in LEADING:
            return None
        place = (frame, frame.f_lineno)
        if event in ("call", "line") and place not in seen and not raised:
            seen.add(place)
            if len(seen) > number:
                raised.append(f"{code.co_name}:{frame.f_lineno}")
                raise Injected
        return step

    return step


def test_interrupted_at_any_step(model: TextModel, runs: Runs) -> None:
    """The main thread leads for two others: whatever it was about to do, they are served."""
    expected = model.embed("a")
    places = set()
    for number in range(1000):
        first = runs.hold(lambda: model.embed("a"))
        others: list[Any] = []

        def fill_up(others: list[Any] = others) -> None:
            wait_for_callers(model, 2)
            others.extend(gather(model, embeds(model, ["a"] * 2), 2))
            runs.release()

        filling = in_thread(fill_up)
        raised: list[str] = []
        sys.settrace(inject(number, raised))
        try:
            np.testing.assert_array_equal(model.embed("a"), expected)
        except Injected:
            pass
        finally:
            sys.settrace(None)
        filling.result(SECONDS)
        for found in [first, *others]:
            np.testing.assert_array_equal(found.result(SECONDS), expected)
        assert model._runner._batcher._parts == []
        if not raised:
            break
        places.update(raised)
    assert {place.partition(":")[0] for place in places} == set(LEADING) - {"_run_alone"}


# Another thread runs the model of argv when the process is forked.
FORK = """
import os, sys, threading
from packhorse import EncoderSession, TextModel

model = TextModel.load(sys.argv[1], threads=1)
running, forked = threading.Event(), threading.Event()
run = EncoderSession.run
def held(*arguments, **options):
    running.set()
    forked.wait(60)
    return run(*arguments, **options)
EncoderSession.run = held
thread = threading.Thread(target=model.embed, args=("a",))
thread.start()
running.wait(60)
if os.fork() == 0:
    EncoderSession.run = run
    try:
        model.embed("a")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
forked.set()
thread.join()
os.wait()
"""


def test_fork_while_another_thread_runs(tmp_path: Path, device: str) -> None:
    if device != "cpu":
        pytest.skip("CUDA cannot be used in a forked child at all")
    folder = with_tokenizer(GOLDEN / "bert-gelu", tmp_path / "model")
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(folder)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert finished.returncode == 0, finished.stderr
    assert "load a session after the fork" in finished.stdout
