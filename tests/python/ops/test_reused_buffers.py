"""Arrays that another thread writes to during a call: the call sees them as they were checked."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
from models import tiny_spec, write_model
from packhorse import PackedTokens, Session, ops

BAD = 2**30


def test_a_batch_that_waits_for_another(tmp_path: Path) -> None:
    """A batch is checked, and then waits for the run of another thread."""
    session = Session.load(write_model(tmp_path, tiny_spec(num_layers=40)), threads=1)
    slow = [np.ones(250, np.int32)] * 20
    batch = PackedTokens(np.arange(9, dtype=np.int32), np.array([0, 2, 9], np.int32))
    expected = session.run(batch).hidden.tobytes()
    found: list[bytes] = []
    first = threading.Thread(target=lambda: session.run(slow))
    second = threading.Thread(target=lambda: found.append(session.run(batch).hidden.tobytes()))
    first.start()
    time.sleep(0.02)  # the first runs
    second.start()
    time.sleep(0.02)  # the second waits
    batch.ids.fill(BAD)
    batch.cu_seqlens.fill(BAD)
    first.join()
    second.join()
    assert found == [expected]


def test_operators() -> None:
    rows = np.ones((64, 16), np.float32)
    a, b = np.ones((1, 8, 16), np.float32), np.ones((1, 8, 16), np.float32)
    slots = np.zeros(64, np.int32)
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            slots.fill(BAD)
            slots.fill(0)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=write)
    thread.start()
    expected = ops.add_lora(rows, rows, a, b, np.zeros(64, np.int32), threads=1).tobytes()
    try:
        for _ in range(100):
            try:
                assert ops.add_lora(rows, rows, a, b, slots, threads=1).tobytes() == expected
            except ValueError as error:
                assert str(BAD) in str(error)  # noqa: PT017
    finally:
        ends.set()
        thread.join()
        sys.setswitchinterval(before)
