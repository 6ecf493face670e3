"""Many threads on one session, the interpreter lock, and fork()."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from models import random_sequences
from packhorse import Session
from precisions import ModelMaker, Precision


def test_one_session_many_threads(device: str, precision: Precision, tiny_model: Path) -> None:
    session = Session.load(
        tiny_model, device, precision.name, max_tokens=512, max_sequences=8, threads=2
    )
    batches = [
        random_sequences([int(n) for n in np.random.default_rng(i).integers(0, 60, i % 8)], seed=i)
        for i in range(24)
    ]
    expected = [session.run(batch, outputs=["hidden", "embedding"]) for batch in batches]

    def work(worker: int) -> None:
        for i in np.random.default_rng(worker).permutation(len(batches)):
            if i % 6 == 0:
                with pytest.raises(ValueError, match="ids"):
                    session.run([[1, 99]])
            result = session.run(batches[i], outputs=["hidden", "embedding"])
            assert result.hidden.tobytes() == expected[i].hidden.tobytes()
            assert result.embedding.tobytes() == expected[i].embedding.tobytes()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, worker) for worker in range(32)]:
            done.result(timeout=60)


def test_many_sessions_at_once(device: str, make_model: ModelMaker) -> None:
    """Loading, running and dropping sessions of two models in all threads at once."""
    folders = [make_model(name=str(seed), seed=seed) for seed in range(2)]
    batch = random_sequences([40, 3, 70])

    def run(i: int) -> bytes:
        threads = 1 + i % 3
        session = Session.load(folders[i % 2], device, max_tokens=256, threads=threads)
        results = {session.run(batch).hidden.tobytes() for _ in range(5)}
        assert len(results) == 1
        return results.pop()

    expected = [run(0), run(1)]
    assert expected[0] != expected[1]
    with ThreadPoolExecutor(6) as pool:
        for i, found in enumerate(pool.map(run, range(24))):
            assert found == expected[i % 2]


def ticks_during(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds that `work` took, and how often another thread woke up well inside of them."""
    stop = threading.Event()
    times: list[float] = []

    def tick() -> None:
        while not stop.is_set():
            times.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        begin = time.perf_counter()
        work()
        end = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    # Before and after the native call the lock may well change hands: 20 ms of grace.
    return end - begin, sum(begin + 0.02 < t < end - 0.02 for t in times)


def test_the_interpreter_lock_is_released(device: str, make_model: ModelMaker) -> None:
    folder = make_model(
        vocab_size=20000, hidden_size=256, num_layers=3, intermediate_size=1024, heads=None
    )
    sessions: list[Session] = []
    load_time, load_ticks = ticks_during(
        lambda: sessions.append(Session.load(folder, device, max_tokens=12288, threads=1))
    )
    sequences = random_sequences([256] * 48)
    run_time, run_ticks = ticks_during(lambda: sessions[0].run(sequences))
    assert run_time < 0.06 or run_ticks >= 5
    assert load_time < 0.06 or load_ticks >= 2
    if device == "cpu":
        assert run_time > 0.06, "too short to tell"


# A session loaded before fork(): argv is the model's folder, the device, and how many threads.
FORK = """
import os, sys, time
import packhorse

folder, device, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
load = lambda: packhorse.Session.load(folder, device, max_tokens=256, threads=threads)
batch = [[1, 2, 3] * 20, [4], [5] * 70]
session = load()
expected = session.run(batch).hidden.tobytes()
child = os.fork()
if child == 0:
    try:
        session.run(batch)
        os._exit(1)
    except RuntimeError as error:
        print(error, flush=True)
    own = load()
    if own.run(batch).hidden.tobytes() != expected:
        os._exit(2)
    del session, own
    if load().run(batch).hidden.tobytes() != expected:
        os._exit(3)
    sys.exit(0)
assert session.run(batch).hidden.tobytes() == expected
for _ in range(600):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(child, 9)
    sys.exit("the child hangs")
assert session.run(batch).hidden.tobytes() == expected
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_fork(device: str, tiny_model: Path, threads: int) -> None:
    if device != "cpu":
        pytest.skip("CUDA cannot be used in a forked child at all")
    finished = subprocess.run(
        [sys.executable, "-c", FORK, str(tiny_model), device, str(threads)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "load a session after the fork" in finished.stdout
