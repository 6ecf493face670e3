"""Memory of a session: it takes as much as its plan says, and runs leave nothing behind."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import random_sequences, tiny_spec, write_model
from packhorse import Session
from precisions import Precision

# Sizes in float32: 41 MB of weights and 17 MB of arena, enough beside a baseline of some 50 MB.
SPEC = tiny_spec(
    vocab_size=12000,
    hidden_size=384,
    num_layers=3,
    num_heads=6,
    intermediate_size=1536,
    positions={"kind": "learned", "count": 512, "offset": 0},
)

# Bytes that malloc may keep of transients: one tensor on its way, oneDNN's kernels and their trial
# runs.
TRANSIENT = 16 << 20

# Run by fresh interpreters, on argv: the model's folder, the dtype. Peaks come from /proc, since
# getrusage() counts what the parent process had before exec.
PRELUDE = """
import gc, sys
import numpy as np
import packhorse
from packhorse import ops

def status(name):
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024

options = {"dtype": sys.argv[2], "max_tokens": 2048, "max_sequences": 64, "threads": 2}
ops.feed_forward(np.ones((200, 64)), (np.ones((64, 64)), None), (np.ones((64, 64)), None),
                 dtype=options["dtype"], threads=2)
batch = packhorse.pack([[i % 4000 for i in range(256)]] * 8)
out = {"hidden": np.ones((2048, 384), np.float32), "pooled": np.ones((8, 384), np.float32)}
gc.collect()
baseline = status("VmRSS")
"""

PEAK = """
session = packhorse.Session.load(sys.argv[1], **options)
for _ in range(3):
    session.run(batch, out=out)
print(status("VmHWM"), baseline, session.memory_plan.total_bytes)
"""

SHARED = """
first = packhorse.Session.load(sys.argv[1], **options)
first.run(batch, out=out)
expected = out["hidden"].copy()
before = status("VmRSS")
second = packhorse.Session.load(sys.argv[1], **options)
second.run(batch, out=out)
after = status("VmRSS")
plan = first.memory_plan
print(after - before, plan.weights.bytes, plan.arena.bytes)
assert np.array_equal(out["hidden"], expected)
del first
gc.collect()
second.run(batch, out=out)
assert np.array_equal(out["hidden"], expected)
"""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def live_bytes() -> int:
    """Bytes that malloc has given out and not got back, mapped blocks included."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("this C library has no mallinfo2")
    mallinfo2.restype = _Mallinfo2
    gc.collect()
    info = mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("memory"), SPEC)


@pytest.fixture
def on_cpu(device: str) -> None:
    if device != "cpu":
        pytest.skip("host memory is the CPU's")


def measure(script: str, folder: Path, dtype: str) -> list[int]:
    finished = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(folder), dtype],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    return [int(word) for word in finished.stdout.split()]


def test_thousands_of_shapes_leave_nothing(
    device: str, precision: Precision, tiny_model: Path
) -> None:
    session = Session.load(
        tiny_model, device, precision.name, max_tokens=800, max_sequences=16, threads=2
    )
    random = np.random.default_rng(0)

    def run(times: int) -> None:
        for _ in range(times):
            count = int(random.integers(0, 16))
            lengths = [int(n) for n in random.integers(0, 40, count)]
            session.run(random_sequences(lengths), outputs=["hidden", "embedding", "pooled"])

    run(500)  # caches of NumPy, of the interpreter and of oneDNN fill up
    live, resident = live_bytes(), [resident_bytes()]
    for _ in range(4):
        run(500)
        resident.append(resident_bytes())
    assert live_bytes() - live < 64 << 10
    # Memory that each run leaves resident would grow in all four parts. One or two of them may grow
    # because the C library touches pages anew that tests before had used and freed.
    assert sorted(np.diff(resident))[1] < 1 << 20, resident


def test_sessions_give_everything_back(device: str, tiny_model: Path) -> None:
    def cycle(times: int) -> None:
        for _ in range(times):
            session = Session.load(tiny_model, device, max_tokens=512, threads=2)
            session.run([[1, 2, 3]])
            del session

    cycle(5)
    live = live_bytes()
    cycle(50)
    assert live_bytes() - live < 64 << 10


@pytest.mark.usefixtures("on_cpu")
def test_peak_is_planned(precision: Precision, folder: Path) -> None:
    peak, baseline, planned = measure(PEAK, folder, precision.name)
    assert planned > 20 << 20
    assert peak <= 1.2 * (planned + baseline)
    # Closer: at no moment are the weights held twice.
    assert peak - baseline <= planned + TRANSIENT


@pytest.mark.usefixtures("on_cpu")
def test_sessions_share_weights(precision: Precision, folder: Path) -> None:
    growth, weights, arena = measure(SHARED, folder, precision.name)
    assert weights > TRANSIENT
    assert growth <= arena + TRANSIENT


def test_a_file_that_changed_is_not_shared(device: str, tmp_path: Path) -> None:
    from models import random_tensors

    spec = tiny_spec()
    folder = write_model(tmp_path / "model", spec, random_tensors(spec, seed=1))
    first = Session.load(folder, device, max_tokens=16)
    before = first.run([[1, 2]]).hidden
    (folder / "model.safetensors").unlink()
    write_model(folder, spec, random_tensors(spec, seed=2))
    after = Session.load(folder, device, max_tokens=16).run([[1, 2]]).hidden
    assert before.tobytes() != after.tobytes()
    assert first.run([[1, 2]]).hidden.tobytes() == before.tobytes()
