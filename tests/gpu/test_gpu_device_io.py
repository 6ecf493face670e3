"""Batches that are in device memory already, and results that stay there."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from consumers import BATCH, CONSUMERS, LENGTHS, OUTPUTS, TORCH, bits, load, on_device, variants
from dlpack_producer import Interface, Producer
from gpu_support import DEVICE
from models import random_sequences, tiny_spec, write_model
from packhorse import PackedTokens, Session, pack
from test_gpu_session import driver_calls, free_memory

LONG = 200_000_000  # clock cycles for which a stream is kept busy: some 100 ms


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("device_io"), tiny_spec())


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    # PyTorch may wait for the device at the first use of a function, so each is used once here.
    torch.cuda._sleep(1)
    for dtype in (torch.float16, torch.float32, torch.int32):
        torch.zeros(9, dtype=dtype, device="cuda").clone().copy_(torch.ones(9, device="cuda"))
    return load(folder)


@pytest.fixture(params=list(CONSUMERS))
def library(request: pytest.FixtureRequest) -> Any:
    return CONSUMERS[request.param]()


# --- same bits as from host memory


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_bits_of_the_host_path(session: Session, library: Any, lengths: list[int]) -> None:
    for batch in variants(lengths):
        expected = session.run(batch, outputs=OUTPUTS)
        there = on_device(batch, library)
        with session.run(there, outputs=OUTPUTS) as result:
            assert (result.hidden.dtype, result.embedding.dtype) == ("float16", "float32")
            assert result.hidden.device == DEVICE
            assert bits(result) == bits(expected)
            for name in OUTPUTS:
                found = library.take(getattr(result, name))
                assert found.tobytes() == getattr(expected, name).tobytes(), name
        gc.collect()
        assert bits(session.run(there, outputs=OUTPUTS, on_device=False)) == bits(expected)
        with session.run(batch, outputs=OUTPUTS, on_device=True) as result:
            assert bits(result) == bits(expected)


def test_nothing(session: Session, library: Any) -> None:
    for ids, cu_seqlens, shape in (([], [0], (0, 48)), ([], [0, 0, 0], (2, 48))):
        with session.run((library.put(ids), library.put(cu_seqlens)), outputs=OUTPUTS) as result:
            assert result.hidden.shape == (0, 48)
            assert result.embedding.shape == result.pooled.shape == shape
            assert not result.embedding.numpy().any()
            assert not library.take(result.pooled).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kernels", ["sm90", "portable"], indirect=True)
def test_kernels_and_dtypes(kernels: str, dtype: str, folder: Path) -> None:
    session = load(folder, dtype)
    for batch in variants(LENGTHS[0]):
        expected = session.run(batch, outputs=OUTPUTS)
        with session.run(on_device(batch), outputs=OUTPUTS) as result:
            assert bits(result) == bits(expected)
    with session.run(on_device(BATCH), outputs=OUTPUTS) as result:
        hidden = torch.from_dlpack(result.hidden)
        assert hidden.dtype == getattr(torch, dtype)
        assert hidden.is_contiguous()
        assert torch.from_dlpack(result.embedding).dtype == torch.float32
        assert hasattr(result.hidden, "__cuda_array_interface__") == (dtype == "float16")
        del hidden


def test_outputs_that_were_not_asked_for(session: Session) -> None:
    with session.run(on_device(BATCH), outputs="embedding") as result:
        assert "embedding DeviceArray(float32[6, 48] on cuda:0)" in repr(result)
        with pytest.raises(AttributeError, match="'hidden' was not computed"):
            _ = result.hidden
    out = {"hidden": np.empty((238, 48), np.float32)}
    found = session.run(on_device(BATCH), outputs=["embedding"], out=out)
    expected = session.run(BATCH, outputs=["hidden", "embedding"])
    assert found.hidden is out["hidden"]
    assert (found.hidden == expected.hidden).all()
    assert (found.embedding == expected.embedding).all()
    assert [len(part) for part in found.unpack()] == LENGTHS[0]


def test_results_outlive_a_closed_session(folder: Path) -> None:
    session = load(folder)
    expected = bits(session.run(BATCH, outputs=OUTPUTS))
    result = session.run(on_device(BATCH), outputs=OUTPUTS)
    session.close()
    with pytest.raises(RuntimeError, match="this session was closed"):
        session.run(on_device(BATCH))
    assert bits(result) == expected
    kept = torch.from_dlpack(result.embedding)
    result.release()
    assert kept.isfinite().all()


def test_protocols_of_results(session: Session) -> None:
    with session.run(on_device(BATCH)) as result:
        array = result.hidden
        assert array.__dlpack_device__() == (2, 0)
        assert '"dltensor"' in repr(array.__dlpack__())
        assert '"dltensor"' in repr(array.__dlpack__(max_version=(0, 8), stream=-1))
        assert '"dltensor_versioned"' in repr(array.__dlpack__(max_version=(1, 2), stream=2))
        for wrong, error in (
            ({"copy": True}, BufferError),
            ({"dl_device": (1, 0)}, BufferError),
            ({"stream": 0}, ValueError),
            ({"stream": -2}, ValueError),
        ):
            with pytest.raises(error):
                array.__dlpack__(**wrong)
        with pytest.raises(TypeError, match="use numpy"):
            np.asarray(array)
        interface = array.__cuda_array_interface__
        assert (interface["shape"], interface["typestr"]) == ((238, 48), "<f2")
        assert interface["stream"] == 1
    with pytest.raises(RuntimeError, match="released"):
        array.numpy()


# --- the order of work on streams


def stream_object(kind: str, stream: torch.cuda.Stream) -> Any:
    handle = stream.cuda_stream
    if kind == "cuda.core":
        return pytest.importorskip("cuda.core").Stream.from_handle(handle)
    return {
        "object": stream,
        "handle": handle,
        "protocol": SimpleNamespace(__cuda_stream__=lambda: (0, handle)),
        "cupy": SimpleNamespace(ptr=handle),
        "negotiated": None,
    }[kind]


@pytest.mark.parametrize(
    "kind", ["object", "handle", "protocol", "cuda.core", "cupy", "negotiated"]
)
def test_streams(session: Session, kind: str) -> None:
    """The ids are written late on the stream, and the results are read at once. Both are in order,
    and the host waits for neither."""
    expected = session.run(BATCH, outputs=OUTPUTS)
    stream = torch.cuda.Stream()
    real, there = on_device(BATCH), on_device(BATCH)
    there.ids.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        there.ids.copy_(real.ids)
        result = session.run(there, outputs=OUTPUTS, stream=stream_object(kind, stream))
        copies = {name: torch.from_dlpack(getattr(result, name)).clone() for name in OUTPUTS}
        assert not stream.query(), "the host waited"
    stream.synchronize()
    for name, copy in copies.items():
        assert copy.float().cpu().numpy().tobytes() == getattr(expected, name).tobytes(), name
    result.release()


def test_the_stream_of_the_cuda_array_interface(session: Session) -> None:
    expected = session.run(BATCH, outputs=OUTPUTS)
    stream = torch.cuda.Stream()
    real, there = on_device(BATCH), on_device(BATCH)
    there.ids.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        there.ids.copy_(real.ids)
    handle = stream.cuda_stream
    ids = Interface(there.ids.data_ptr(), there.ids.shape, stream=handle)
    offsets = Interface(there.cu_seqlens.data_ptr(), there.cu_seqlens.shape)
    result = session.run((ids, offsets), outputs=OUTPUTS)
    # PyTorch ignores the interface's stream. Its own current stream is the legacy default one.
    found = torch.as_tensor(result.embedding, device="cuda").cpu().numpy()
    assert found.tobytes() == expected.embedding.tobytes()
    assert bits(result) == bits(expected)
    result.release()


def test_memory_that_is_still_read_is_not_written(folder: Path) -> None:
    """There is one slot. A run that follows at once must not write it before a reader on another
    stream, which starts late, has read it."""
    session = load(folder, output_slots=1)
    other = pack(random_sequences(LENGTHS[4]))
    expected = [session.run(batch, outputs=OUTPUTS) for batch in (BATCH, other)]
    there = [on_device(batch) for batch in (BATCH, other)]
    reader = torch.cuda.Stream()
    for _ in range(3):
        torch.cuda.synchronize()
        result = session.run(there[0], outputs=OUTPUTS)
        with torch.cuda.stream(reader):
            hidden = torch.from_dlpack(result.hidden)
            torch.cuda._sleep(LONG)
            copy = hidden.clone()
        del hidden
        result.release()
        second = session.run(there[1], outputs=OUTPUTS)
        assert not reader.query(), "the host waited"
        reader.synchronize()
        assert copy.float().cpu().numpy().tobytes() == expected[0].hidden.tobytes()
        assert bits(second) == bits(expected[1])
        second.release()


def test_a_stream_that_is_captured_is_refused(session: Session) -> None:
    there = on_device(BATCH)
    expected = bits(session.run(BATCH, outputs=OUTPUTS))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            with pytest.raises(RuntimeError, match="being captured"):
                session.run(there, stream=stream)
        finally:
            torch.zeros(1, device="cuda")
            graph.capture_end()
    assert bits(session.run(BATCH, outputs=OUTPUTS)) == expected


def test_batches_are_kept_until_they_are_read(session: Session) -> None:
    there = on_device(BATCH)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
    ids = Interface(there.ids.data_ptr(), there.ids.shape)
    kept = weakref.ref(ids)
    session.run((ids, Interface(there.cu_seqlens.data_ptr(), (7,))), stream=stream).release()
    del ids
    assert kept() is not None
    torch.cuda.synchronize()
    session.run(there).release()
    assert kept() is None
    producer = Producer(there.ids.data_ptr(), (238,))
    session.run((producer, there.cu_seqlens)).release()
    torch.cuda.synchronize()
    session.run(there).release()
    assert producer.deleted == 1


# --- output slots


def test_slots(folder: Path) -> None:
    session = load(folder, output_slots=2)
    names = [buffer.name for buffer in session.memory_plan.arena.buffers]
    assert [name for name in names if name.startswith("output_")] == [
        f"output_{i}_{name}" for i in range(2) for name in OUTPUTS
    ]
    there = on_device(BATCH)
    expected = session.run(BATCH, outputs=OUTPUTS)
    first = session.run(there, outputs=OUTPUTS)
    second = session.run(there, outputs=OUTPUTS)

    def full() -> bool:
        with pytest.raises(RuntimeError, match=r"all 2 of them .* output_slots = 3 or more"):
            session.run(there)
        assert bits(session.run(BATCH, outputs=OUTPUTS)) == bits(expected)
        return True

    assert full()
    first.release()
    assert bits(session.run(there, outputs=OUTPUTS)) == bits(expected)  # dropped at once
    first = session.run(there, outputs=OUTPUTS)
    assert full()
    tensor = torch.from_dlpack(first.hidden)
    first.release()
    assert full()
    assert tensor.float().cpu().numpy().tobytes() == expected.hidden.tobytes()
    del tensor
    third = session.run(there)
    capsule = third.hidden.__dlpack__()
    del third
    assert full()
    del capsule
    with session.run(there):
        assert full()
    with session.run(there) as held, held.hidden:
        assert full()
    assert bits(second) == bits(expected)


def test_no_slots(folder: Path) -> None:
    session = load(folder, output_slots=0)
    there = on_device(BATCH)
    with pytest.raises(RuntimeError, match=r"all 0 of them .* output_slots = 1 or more"):
        session.run(there)
    expected = session.run(BATCH, outputs=OUTPUTS)
    assert bits(session.run(there, outputs=OUTPUTS, on_device=False)) == bits(expected)
    smaller = session.memory_plan.arena.bytes
    assert load(folder, output_slots=1).memory_plan.arena.bytes > smaller


def test_results_outlive_their_session(folder: Path) -> None:
    start = free_memory()
    session = load(folder)
    expected = session.run(BATCH, outputs=OUTPUTS)
    result = session.run(on_device(BATCH), outputs=OUTPUTS)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    tensor = torch.from_dlpack(result.pooled)
    assert bits(result) == bits(expected)
    del result
    assert tensor.float().cpu().numpy().tobytes() == expected.pooled.tobytes()
    box = [tensor]
    del tensor
    with ThreadPoolExecutor(1) as pool:  # another thread drops the tensor
        pool.submit(box.clear).result()
    assert abs(free_memory() - start) <= 32 << 20


# --- memory, waiting, threads


def test_runs_neither_allocate_nor_wait(folder: Path, tmp_path: Path) -> None:
    sessions = []
    loading = driver_calls(lambda: sessions.append(load(folder)), tmp_path / "load.json")
    if not loading["cudaMalloc"]:
        pytest.skip(f"the profiler does not see what a load calls: {dict(loading)}")
    there = [on_device(batch) for lengths in LENGTHS for batch in variants(lengths)]
    stream = torch.cuda.Stream()

    def work() -> None:
        for i in range(200):
            batch = there[i % len(there)]
            order = (None, stream, stream.cuda_stream)[i % 3]
            with sessions[0].run(batch, outputs=OUTPUTS, stream=order) as result:
                torch.from_dlpack(result.hidden)

    work()
    torch.cuda.synchronize()
    calls = driver_calls(work, tmp_path / "runs.json")
    assert calls["cudaGraphLaunch"] >= 100, dict(calls)
    memory = {name for name in calls if "Malloc" in name or "Free" in name or "Alloc" in name}
    assert not memory, dict(calls)
    waits = {name: n for name, n in calls.items() if "Synchronize" in name}
    assert set(waits) <= {"cudaDeviceSynchronize"}, dict(calls)  # calls of the profiler itself
    assert waits.get("cudaDeviceSynchronize", 0) <= 2, dict(calls)
    assert "cudaMemcpy" not in calls
    assert not any("MemcpyAsync" in name for name in calls), dict(calls)


def test_many_threads(folder: Path) -> None:
    """Threads share one session. Each has a stream of its own and mixes host and device batches."""
    session = load(folder, output_slots=8)
    batches = [pack(random_sequences(lengths, seed=i)) for i, lengths in enumerate(LENGTHS * 3)]
    expected = [session.run(batch, outputs=OUTPUTS) for batch in batches]
    there = [on_device(batch) for batch in batches]
    bad = on_device(PackedTokens([50], [0, 1]))
    torch.cuda.synchronize()

    def work(worker: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in np.random.default_rng(worker).permutation(len(batches)):
                kind = (worker + i) % 4
                if kind == 0:
                    assert bits(session.run(batches[i], outputs=OUTPUTS)) == bits(expected[i])
                    continue
                if kind == 1:
                    with session.run(bad) as refused, pytest.raises(ValueError, match="ids"):
                        refused.check()
                order = stream if kind == 2 else None
                with session.run(there[i], outputs=OUTPUTS, stream=order) as result:
                    hidden = torch.from_dlpack(result.hidden).clone()
                    if kind == 3:
                        assert bits(result) == bits(expected[i])
                assert hidden.float().cpu().numpy().tobytes() == expected[i].hidden.tobytes()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, worker) for worker in range(32)]:
            done.result(timeout=120)


def test_a_chain(session: Session) -> None:
    """A consumer on the device uses the results of run after run; the host never looks at them."""
    there = [on_device(batch) for batch in variants(LENGTHS[0])]
    expected = [session.run(batch, outputs=OUTPUTS) for batch in variants(LENGTHS[0])]
    sums = [torch.zeros(238, 48, device="cuda") for _ in there]
    for i in range(60):
        result = session.run(there[i % 4])
        sums[i % 4] += torch.from_dlpack(result.hidden).float()
        del result
    for total, one in zip(sums, expected, strict=True):
        want = np.add.accumulate(np.repeat(one.hidden[None], 15, 0))[-1]
        assert (total.cpu().numpy() == want).all()


def test_host_neighbours(session: Session) -> None:
    """A sequence has the same bits alone, in company, from the host and from the device."""
    whole = session.run(on_device(BATCH), outputs=["hidden"])
    hidden = whole.hidden.numpy()
    whole.release()
    for begin, end in pairwise(BATCH.cu_seqlens.tolist()):
        alone = (TORCH.put(BATCH.ids[begin:end]), TORCH.put([0, end - begin]))
        with session.run(alone) as result:
            assert result.hidden.numpy().tobytes() == hidden[begin:end].tobytes()
