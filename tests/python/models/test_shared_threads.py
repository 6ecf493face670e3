"""Threads of the process: shared by its sessions, asleep between runs, on the cores asked for."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import random_sequences
from packhorse import Session, ops
from precisions import ModelMaker


@pytest.fixture(autouse=True)
def on_cpu(device: str) -> None:
    if device != "cpu":
        pytest.skip("threads are the CPU's")


def task_ids() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def new_tasks(before: set[int]) -> set[int]:
    """Threads started since, once those that are ending have ended."""
    for _ in range(100):
        time.sleep(0.01)
        if task_ids() == (found := task_ids()):
            break
    return found - before


def load(folder: Path, threads: int | None = 11, **options: Any) -> Session:
    return Session.load(folder, max_tokens=512, max_sequences=16, threads=threads, **options)


def test_sessions_share_threads(make_model: ModelMaker) -> None:
    folders = [make_model(name=str(seed), seed=seed) for seed in range(2)]
    before = task_ids()
    first = load(folders[0])
    assert len(new_tasks(before)) == 10  # the caller is one of the eleven
    others = [load(folders[i % 2]) for i in range(8)]
    alone = load(folders[0], threads=1)
    assert len(new_tasks(before)) == 10
    x = np.ones((3, 16), np.float32)
    ops.gemm(x, np.ones((4, 16)), threads=11)
    assert len(new_tasks(before)) == 10
    wider = load(folders[0], threads=13)
    assert len(new_tasks(before)) == 10 + 12
    expected = first.run([[1, 2, 3]]).hidden.tobytes()
    del first
    del others[3:]
    for session in (alone, wider, others[0], others[2]):
        assert session.run([[1, 2, 3]]).hidden.tobytes() == expected
    del wider, session
    assert len(new_tasks(before)) == 10  # kept by the operators


def test_sessions_at_once_give_the_same_bits(make_model: ModelMaker) -> None:
    """Two models, thread counts alike and not, errors among the runs, loads and drops meanwhile."""
    folders = [make_model(name=str(seed), seed=seed) for seed in range(2)]
    batches = [random_sequences([40, 3, 0, 170], seed=seed) for seed in range(4)]
    sessions = [load(folders[i % 2], threads) for i, threads in enumerate([2, 2, 3, 4, 1, 1])]
    expected = [
        [session.run(batch).hidden.tobytes() for batch in batches] for session in sessions[:2]
    ]
    assert expected[0] != expected[1]

    def work(worker: int) -> None:
        choose = random.Random(worker)
        for _ in range(40):
            model, batch = choose.randrange(2), choose.randrange(4)
            session = choose.choice(sessions[model::2])
            if choose.random() < 0.1:
                with pytest.raises(ValueError, match="ids"):
                    session.run([[1, 99]])
            if choose.random() < 0.1:
                session = load(folders[model], choose.choice([1, 2, 3, 7]))
            assert session.run(batches[batch]).hidden.tobytes() == expected[model][batch]

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, worker) for worker in range(6)]:
            done.result(timeout=120)


def test_idle_sessions_use_no_cpu(make_model: ModelMaker) -> None:
    sessions = [load(make_model(name=str(i), seed=i), threads=3) for i in range(3)]
    for session in sessions:
        session.run([[1, 2, 3]] * 8)
    workers = new_tasks({threading.get_native_id()})

    def nanoseconds() -> dict[int, int]:
        """Time that each worker has been on a processor."""
        paths = {task: Path(f"/proc/self/task/{task}/schedstat") for task in workers & task_ids()}
        return {task: int(path.read_text().split()[0]) for task, path in paths.items()}

    time.sleep(0.05)  # they spin before they come to rest
    before = nanoseconds()
    time.sleep(0.2)
    after = nanoseconds()
    assert all(after[task] - before.get(task, 0) < 0.02e9 for task in after), (before, after)


def test_pinned_workers(make_model: ModelMaker) -> None:
    cores = sorted(os.sched_getaffinity(0))
    folder = make_model()
    with pytest.raises(ValueError, match=f"threads is {len(cores) + 1} with pin_threads, expected"):
        load(folder, len(cores) + 1, pin_threads=True)
    before = task_ids()
    free = load(folder, None)
    floating = new_tasks(before)
    pinned = load(folder, None, pin_threads=True)
    expected = [{core} for core in cores[1:]]
    end = time.monotonic() + 20  # a busy machine may start a thread, or end one, late
    masks: list[set[int]] = []
    while masks != expected and time.monotonic() < end:
        with contextlib.suppress(ProcessLookupError):
            tasks = new_tasks(before) - floating
            masks = sorted((os.sched_getaffinity(task) for task in tasks), key=min)
    assert masks == expected
    assert os.sched_getaffinity(0) == set(cores)
    batch = random_sequences([100, 7, 60])
    assert pinned.run(batch).hidden.tobytes() == free.run(batch).hidden.tobytes()


def test_threads_keep_to_the_mask_of_their_loader(make_model: ModelMaker) -> None:
    folder = make_model()
    core = max(os.sched_getaffinity(0))
    everywhere = load(folder, 2)
    batch = random_sequences([100, 7, 60])
    expected = everywhere.run(batch).hidden.tobytes()

    def on_one_core() -> None:
        os.sched_setaffinity(0, {core})
        before = task_ids()
        own = load(folder, 2)
        assert [os.sched_getaffinity(task) for task in new_tasks(before)] == [{core}]
        assert own.run(batch).hidden.tobytes() == expected
        # All cores of the mask are one: the caller's.
        before = task_ids()
        assert load(folder, None).run(batch).hidden.tobytes() == expected
        assert new_tasks(before) == set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(on_one_core).result(timeout=60)
