"""Memory, errors and threads of sessions on a GPU."""

from __future__ import annotations

import gc
import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import torch
from gpu_support import DEVICE
from models import random_sequences, tiny_spec, write_model
from packhorse import PackedTokens, Session

OUTPUTS = ["hidden", "embedding", "pooled"]
# About 90 MB of weights in 16 bits, several times what a session takes besides its plan.
LARGE = tiny_spec(
    vocab_size=30000, hidden_size=768, num_heads=12, intermediate_size=3072, num_layers=3
)
BATCH = random_sequences([40, 0, 3, 130, 1, 64])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("session"), tiny_spec())


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("large"), LARGE)


def load(folder: Path, **options: Any) -> Session:
    return Session.load(
        folder, DEVICE, "float16", **{"max_tokens": 1024, "kv_tokens": 0, **options}
    )


def free_memory() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info(0)[0])


def run_bits(session: Session, batch: Any = BATCH) -> bytes:
    result = session.run(batch, outputs=OUTPUTS)
    return b"".join(getattr(result, name).tobytes() for name in OUTPUTS)


# --- memory


def random_runs(session: Session, times: int) -> None:
    random = np.random.default_rng(0)
    for i in range(times):
        lengths = random.integers(0, 60, int(random.integers(0, 16)))
        total = int(lengths.sum())
        extra: dict[str, Any] = {}
        if i % 3 == 1:
            extra["type_ids"] = random.integers(0, 2, total)
        if i % 7 == 1:
            extra["position_ids"] = random.integers(0, 300, total)
        cu_seqlens = np.cumsum([0, *lengths])
        batch = PackedTokens(random.integers(0, 50, total), cu_seqlens, **extra)
        session.run(batch, outputs=OUTPUTS)


def test_runs_take_no_device_memory(folder: Path) -> None:
    """Another thread watches the free memory, which must not change for a moment."""
    session = load(folder)
    random_runs(session, 500)
    before, seen, stop = free_memory(), set(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.add(torch.cuda.mem_get_info(0)[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        random_runs(session, 3000)
    finally:
        stop.set()
        watcher.join()
    assert seen == {before}
    assert free_memory() == before


def driver_calls(work: Callable[[], object], file: Path) -> Counter[str]:
    """Returns how often the whole process called each function of the CUDA runtime and driver."""
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as trace:
        work()
    trace.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    return Counter(
        event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")
    )


def test_runs_neither_allocate_nor_wait(folder: Path, tmp_path: Path) -> None:
    """Runs allocate nothing, and only the final read-back of a run waits for the device."""
    sessions = []
    loading = driver_calls(lambda: sessions.append(load(folder)), tmp_path / "load.json")
    if not loading["cudaMalloc"]:
        pytest.skip(f"the profiler does not see what a load calls: {dict(loading)}")
    random_runs(sessions[0], 20)
    runs = 200
    calls = driver_calls(lambda: random_runs(sessions[0], runs), tmp_path / "runs.json")
    assert calls["cudaGraphLaunch"] > runs / 2, dict(calls)
    memory = {name for name in calls if "Malloc" in name or "Free" in name or "Alloc" in name}
    assert not memory, dict(calls)
    # Batches without tokens may end early. An upload waits for the event of its slot.
    assert calls["cudaStreamSynchronize"] <= runs, dict(calls)
    waits = {name for name in calls if "Synchronize" in name}
    profiler = {"cudaDeviceSynchronize"}  # it waits by itself at the end
    assert waits <= {"cudaStreamSynchronize", "cudaEventSynchronize"} | profiler, dict(calls)
    assert calls["cudaDeviceSynchronize"] <= 2, dict(calls)
    assert calls["cudaMemcpy"] == 0, dict(calls)


def test_sessions_share_weights_and_give_everything_back(large_folder: Path) -> None:
    run_bits(load(large_folder))  # loads modules and a context, which stay
    slack = 32 << 20
    start = free_memory()
    first = load(large_folder)
    plan = first.memory_plan
    one = free_memory()
    assert plan.weights.bytes > 80 << 20
    assert abs(start - one - plan.total_bytes) <= slack
    expected = run_bits(first)
    second = load(large_folder, max_tokens=512)
    two = free_memory()
    assert one - two <= second.memory_plan.arena.bytes + slack
    assert run_bits(second) == expected
    del first
    assert run_bits(second) == expected
    del second
    assert abs(free_memory() - start) <= slack


def test_memory_limit(folder: Path) -> None:
    plan = packhorse.plan_memory(folder, DEVICE, "float16", max_tokens=1024)
    exact = load(folder, memory_limit=plan.total_bytes)
    assert exact.memory_plan == plan
    expected = run_bits(exact)
    limit = plan.total_bytes - 1
    with pytest.raises(MemoryError, match=f"memory_limit is {limit} bytes.*lower max_tokens"):
        load(folder, memory_limit=limit)
    assert run_bits(exact) == expected


def test_out_of_memory(large_folder: Path) -> None:
    """A plan that is too large for the device gives an error with numbers and changes nothing."""
    session = load(large_folder)
    expected = run_bits(session)
    before = free_memory()
    message = r"cuda:0 has too little memory: [0-9.]+ MiB needed.*MiB free.*lower max_tokens"
    for _ in range(3):
        with pytest.raises(MemoryError, match=message):
            load(large_folder, max_tokens=2**26)
        assert run_bits(session) == expected
    assert before - free_memory() <= 4 << 20
    smaller = load(large_folder, max_tokens=300)
    assert run_bits(smaller) == expected
    with pytest.raises(ValueError, match="max_tokens is 2147483648"):
        load(large_folder, max_tokens=2**31)
    assert run_bits(session) == expected


# --- errors


def test_batches_that_do_not_fit_leave_the_session_usable(folder: Path) -> None:
    session = load(folder, max_tokens=256, max_sequences=8)
    expected = run_bits(session)
    long = list(range(50)) * 7
    for batch, message in (
        ([[1, 50]], r"ids\[1\] = 50"),
        ([[-1]], r"ids\[0\] = -1"),
        ([[1] * 257], "257 tokens.*max_tokens = 256"),
        ([[1]] * 9, "9 sequences.*max_sequences = 8"),
        (PackedTokens([1, 2, 3], [0, 2]), r"cu_seqlens\[1\] = 2, but there are 3 tokens"),
        (PackedTokens([1, 2, 3], [0, 2, 1, 3]), "cu_seqlens decreases"),
        (PackedTokens([1], [0, 1], type_ids=[2]), r"type_ids\[0\] = 2"),
        (PackedTokens([1], [0, 1], position_ids=[300]), r"position_ids\[0\] = 300"),
        ([long], "tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            session.run(batch)
        assert run_bits(session) == expected, message
    with pytest.raises(ValueError, match="output 'logits' was asked for"):
        session.run([[1]], outputs=["logits"])
    assert run_bits(session) == expected


def test_nothing_to_do(folder: Path) -> None:
    session = load(folder)
    empties: list[Any] = [[], (), PackedTokens([], [0])]
    for empty in empties:
        result = session.run(empty, outputs=OUTPUTS)
        assert result.hidden.shape == result.embedding.shape == result.pooled.shape == (0, 48)
    session.run([[1, 2, 3]] * 4, outputs=OUTPUTS)
    result = session.run([[], [1], []], outputs=OUTPUTS)
    assert not result.embedding[[0, 2]].any()
    assert not result.pooled[[0, 2]].any()
    assert result.embedding[1].any()


def test_weights_beyond_float16(tmp_path: Path) -> None:
    from models import random_tensors

    tensors = random_tensors(tiny_spec())
    tensors["layers.1.ffn.up.weight"][3, 5] = 7e4
    folder = write_model(tmp_path, tiny_spec(), tensors)
    with pytest.raises(
        ValueError, match=r"'layers\.1\.ffn\.up\.weight' holds 7.*load it as bfloat16"
    ):
        load(folder)
    assert Session.load(folder, DEVICE, "bfloat16", max_tokens=64).run([[1]]).hidden.any()


# --- threads


def test_many_threads(folder: Path, large_folder: Path) -> None:
    """Threads run on two sessions of one device at once, each with its own stream."""
    sessions = [load(folder, max_sequences=8), load(large_folder, max_sequences=8)]
    batches = [
        random_sequences([int(n) for n in np.random.default_rng(i).integers(0, 60, i % 8)], seed=i)
        for i in range(24)
    ]
    expected = [[run_bits(session, batch) for batch in batches] for session in sessions]

    def work(worker: int) -> None:
        for i in np.random.default_rng(worker).permutation(len(batches)):
            if i % 6 == 0:
                with pytest.raises(ValueError, match="ids"):
                    sessions[worker % 2].run([[1, 10**6]])
            assert run_bits(sessions[worker % 2], batches[i]) == expected[worker % 2][i]

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, worker) for worker in range(32)]:
            done.result(timeout=60)


def test_sessions_load_while_others_run(folder: Path, large_folder: Path) -> None:
    """Recording graphs in one thread does not disturb runs in the others."""
    expected = {path: run_bits(load(path)) for path in (folder, large_folder)}

    def work(i: int) -> bool:
        path = (folder, large_folder)[i % 2]
        session = load(path, max_tokens=256 + 100 * (i % 3))
        return all(run_bits(session) == expected[path] for _ in range(20))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(18)))
