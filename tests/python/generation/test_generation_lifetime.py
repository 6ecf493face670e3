"""Sessions that end where nobody expects it: inside a token mask, in the engine's own thread, in a
signal handler, with the interpreter, in a fork. None ends the process or waits for itself."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import packhorse
import pytest
from packhorse import GenerationSession, Sampling

MODEL = Path(__file__).parents[2] / "golden" / "generation" / "llama"
LONG = Sampling(ignore_eos=True, temperature=1.0)


def load() -> GenerationSession:
    session = packhorse.Session.load(MODEL, kv_tokens=4096, threads=1)
    assert isinstance(session, GenerationSession)
    return session


class Mask:
    """Allows all tokens, and calls a function before each."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def fill(self, words: memoryview) -> bool:
        self.call()
        return False

    def accept(self, token: int) -> None:
        pass


def masked(call: Callable[[], object]) -> Sampling:
    return Sampling(mask=Mask(call), ignore_eos=True)


def test_the_collector_finds_the_session_inside_a_mask() -> None:
    dropped = threading.Event()

    def collect() -> None:
        assert dropped.wait(10)
        gc.collect()

    session = load()
    request = session.submit([1], masked(collect))
    circle: list[object] = [session]
    circle.append(circle)
    del session, circle
    dropped.set()
    assert request.wait(10)
    assert request.finish_reason() == "cancelled"


@pytest.mark.parametrize("where", ["fill", "accept"])
def test_a_mask_closes_its_session(where: str) -> None:
    session = load()
    mask = Mask(lambda: None)
    setattr(mask, where, lambda _: session.close())
    other = session.submit([1, 2], LONG)
    request = session.submit([1], Sampling(mask=mask, ignore_eos=True))
    assert request.wait(10)
    assert other.wait(10)
    assert {request.finish_reason(), other.finish_reason()} <= {"cancelled", "length"}
    with pytest.raises(RuntimeError, match="was closed"):
        session.submit([1])


def test_a_mask_that_is_dropped_closes_its_session() -> None:
    closed = threading.Event()
    session = load()

    class Last(Mask):
        def __del__(self) -> None:
            session.close()
            closed.set()

    request = session.submit([1], Sampling(mask=Last(lambda: None), max_new_tokens=2))
    request.wait(10)
    del request
    assert closed.wait(10)


def test_masks_close_the_sessions_of_each_other() -> None:
    both = threading.Barrier(2, timeout=10)

    def close(other: GenerationSession) -> None:
        if not other.closed:
            both.wait()
            other.close()

    first, second = load(), load()
    requests = [
        first.submit([1], masked(lambda: close(second))),
        second.submit([1], masked(lambda: close(first))),
    ]
    assert all(request.wait(10) for request in requests)


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.generate([[1]], Sampling(max_new_tokens=2)),
        lambda session: session.submit([1], LONG).wait(),
        lambda session: session.submit([1], LONG).result(),
        lambda session: next(session.submit([1], LONG).tokens()),
    ],
)
def test_a_mask_that_waits_for_its_own_session(call: Callable[[GenerationSession], object]) -> None:
    with load() as session:
        request = session.submit([1], masked(lambda: call(session)))
        with pytest.raises(RuntimeError, match="waits for a request of its own session"):
            request.result()
        assert len(session.generate([[1]], Sampling(max_new_tokens=2))) == 1


def test_a_mask_waits_for_another_session() -> None:
    with load() as session, load() as other:
        limit = Sampling(max_new_tokens=2)
        request = session.submit([1], masked(lambda: other.generate([[1]], limit)))
        assert request.tokens().__next__() in range(session.vocab_size)


def test_a_signal_handler_drops_the_session() -> None:
    held = [load()]
    request = held[0].submit([1], masked(lambda: time.sleep(0.001)))
    before = signal.signal(signal.SIGALRM, lambda *_: held.clear())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert request.wait(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not held


_PROGRAM = """
import contextlib, os, sys, threading, time
sys.path.insert(0, {folder!r})
from test_generation_lifetime import LONG, Mask, Sampling, load, masked

running = threading.Event()

def slow():
    running.set()
    time.sleep(0.01)

session = load()
request = session.submit([1], masked(slow))
running.wait()
{end}
"""
_ENDS = {
    "closed-by-its-mask": """
closing = load()
def close():
    closing.close()
    time.sleep(0.2)
closing.submit([1], masked(close))
""",
    "daemon": """
def forever():
    while True:
        with contextlib.suppress(RuntimeError):  # the end closes sessions
            load().submit([1], masked(slow))
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
""",
    "fork": """
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    try:
        request.wait()
    except RuntimeError as error:
        assert "forked" in str(error)
    del session
""",
}


# Threads that are inside calls of a session when the interpreter ends. It is loaded after all
# others were closed, and `Slow` lets the threads run once more when the lock is no longer theirs.
_DAEMONS = """
import atexit, sys, threading, time

def load_late():
    late.append(load())
    time.sleep(0.05)

late = []
atexit.register(load_late)
sys.path.insert(0, {folder!r})
from test_generation_lifetime import load

def ask(late=late, sleep=time.sleep):
    while not late:
        sleep(0.001)
    while True:
        late[0].stats

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.2)

slow = Slow()
for _ in range(8):
    threading.Thread(target=ask, daemon=True).start()
"""


def check_end(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("end", _ENDS)
def test_the_interpreter_ends(end: str) -> None:
    check_end(_PROGRAM.format(folder=str(Path(__file__).parent), end=_ENDS[end]))


def test_the_interpreter_ends_under_calls() -> None:
    check_end(_DAEMONS.format(folder=str(Path(__file__).parent)))
