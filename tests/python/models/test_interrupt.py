"""Ctrl-C and other signals during a run on the CPU, which ends between two layers.

Models have so many layers that a run takes seconds, all with the weights of one. That a run was
ended, and not done before the exception came, is seen by its output, which nothing was written to.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from models import random_sequences, random_tensors, tiny_spec, write_model
from packhorse import EncoderSession, Session, TextModel
from packhorse.result import FloatArray
from tiny_tokenizer import with_tokenizer

LAYERS = 4000
LONG = random_sequences([256] * 4)
SHORT = [[1, 2, 3]]


class AlarmError(Exception):
    pass


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory, device: str) -> Session:
    if device != "cpu":
        pytest.skip("runs on other devices are queued, and short")
    spec = tiny_spec(num_layers=LAYERS, layer_weights=[0] * LAYERS)
    tensors = random_tensors(tiny_spec(num_layers=1))
    folder = write_model(tmp_path_factory.mktemp("deep") / "model", spec, tensors)
    return Session.load(folder, device, max_tokens=1024, max_sequences=4, threads=2)


@pytest.fixture
def untouched() -> FloatArray:
    return np.full((1024, 48), np.nan, np.float32)


@pytest.fixture
def alarm() -> Iterator[Callable[..., None]]:
    """Calls a handler when the process has computed for so many seconds."""

    def start(handler: Callable[[], object], seconds: float = 0.1) -> None:
        signal.signal(signal.SIGPROF, lambda *_: handler())
        signal.setitimer(signal.ITIMER_PROF, seconds)

    before = signal.getsignal(signal.SIGPROF)
    yield start
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Has the process sent SIGINT by another thread, 0.1 seconds later."""
    timer = threading.Timer(0.1, press_ctrl_c)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield timer.start
    timer.cancel()
    timer.join()
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_run(
    deep: Session, ctrl_c: Callable[[], None], untouched: FloatArray
) -> None:
    expected = deep.run(SHORT).hidden
    ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        deep.run(LONG, out={"hidden": untouched})
    assert np.isnan(untouched).all()
    np.testing.assert_array_equal(deep.run(SHORT).hidden, expected)


def test_ctrl_c_ends_run_many_and_methods_of_text(
    tmp_path: Path, deep: Session, ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    folder = with_tokenizer(
        GOLDEN / "albert", tmp_path / "model", config={"num_hidden_layers": LAYERS}
    )
    ended = watch_runs(monkeypatch, ctrl_c)
    with TextModel.load(folder, deep.device, max_sequences=64, threads=2) as model:
        with pytest.raises(KeyboardInterrupt):
            model.embed(["the cat sat on the mat " * 10] * 256)
        assert ended == [KeyboardInterrupt]
        assert model.embed("a").shape == (32,)


def watch_runs(
    monkeypatch: pytest.MonkeyPatch, begun: Callable[[], None]
) -> list[type[BaseException]]:
    """Collects exceptions that the sessions' own runs raise, inside the runtime. The first run
    calls `begun`."""
    raised: list[type[BaseException]] = []
    calls = iter([begun])
    run_into = EncoderSession._run_into

    def watched(session: EncoderSession, *arguments: Any) -> None:
        next(calls, lambda: None)()
        for array in arguments[1].values():
            array[:] = np.nan
        try:
            run_into(session, *arguments)
        except BaseException as error:
            if all(np.isnan(array).all() for array in arguments[1].values()):
                raised.append(type(error))
            raise

    monkeypatch.setattr(EncoderSession, "_run_into", watched)
    return raised


def test_ctrl_c_ends_the_wait_for_a_run_of_another_thread(
    deep: Session, ctrl_c: Callable[[], None], untouched: FloatArray
) -> None:
    batch = [LONG[0][:128]]
    theirs = np.full((128, 48), np.nan, np.float32)
    worker = threading.Thread(target=deep.run, args=(batch,), kwargs={"out": {"hidden": theirs}})
    before = time.process_time()
    worker.start()
    while time.process_time() < before + 0.1:  # after so much work a run has begun
        time.sleep(0.01)
    try:
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            deep.run(SHORT, out={"hidden": untouched[:3]})
        assert np.isnan(theirs).all()  # the run is still under way
    finally:
        worker.join()
    assert np.isnan(untouched).all()
    assert np.isfinite(theirs).all()


def test_what_a_handler_raises_comes_through(
    deep: Session, alarm: Callable[..., None], untouched: FloatArray
) -> None:
    def handler() -> None:
        raise AlarmError("enough")

    alarm(handler)
    with pytest.raises(AlarmError, match="enough"):
        deep.run(LONG, out={"hidden": untouched})
    assert np.isnan(untouched).all()


def test_a_run_goes_on_after_a_handler_that_returns(
    deep: Session,
    alarm: Callable[..., None],
    untouched: FloatArray,
    tiny_model: Path,
) -> None:
    """A handler may use other sessions, but not the one whose run it interrupts."""
    other = Session.load(tiny_model, "cpu", max_tokens=64, threads=2)
    expected = other.run(SHORT).hidden
    found: dict[str, Any] = {}

    def handler() -> None:
        found["was running"] = bool(np.isnan(untouched).all())
        found["other"] = other.run(SHORT).hidden
        try:
            deep.run(SHORT)
        except RuntimeError as error:
            found["error"] = str(error)

    alarm(handler, 0.02)  # long before the run is done, which is a short one
    batch = [LONG[0][:64]]
    result = deep.run(batch, out={"hidden": untouched[:64]})
    assert found["was running"]
    assert "signal handler" in found["error"]
    np.testing.assert_array_equal(found["other"], expected)
    np.testing.assert_array_equal(result.hidden, deep.run(batch).hidden)


def test_other_threads_run_on(
    deep: Session, ctrl_c: Callable[[], None], untouched: FloatArray, tiny_model: Path
) -> None:
    other = Session.load(tiny_model, "cpu", max_tokens=1024, threads=2)
    expected = other.run(LONG).hidden
    stop = threading.Event()
    wrong: list[object] = []

    def work() -> None:
        try:
            while not stop.is_set():
                np.testing.assert_array_equal(other.run(LONG).hidden, expected)
        except BaseException as error:
            wrong.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            deep.run(LONG, out={"hidden": untouched})
    finally:
        stop.set()
        worker.join()
    assert np.isnan(untouched).all()
    assert not wrong
