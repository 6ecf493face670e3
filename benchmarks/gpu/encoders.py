"""Times Packhorse and PyTorch on one GPU, side by side in one run, in float16; and Packhorse in
float8, where the device has it. With --portable, Packhorse has the kernels that every device from
compute capability 8.0 on has, and int8 beside float16.

    python benchmarks/gpu/encoders.py [--quick] [--only TEXT] [--portable] [--out FILE.json]

Models have random weights in the shapes of BERT-base, BERT-large and MiniLM; lengths are uniform
with a mean of about 0.6 of the longest. Prints Markdown and writes FILE.json (default:
benchmarks/results/). METHOD below, which is also in the file, says how times are measured.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import packhorse
import torch
from batches import (
    ORIGINAL,
    ORIGINAL_WORKLOADS,
    WORKLOADS,
    Model,
    Workload,
    load_session,
    random_weights,
)
from kernel_timing import intervals_ms
from results import origin, result_of, table, write
from torch_encoders import VARLEN, Batch, Encoder, capture, forget_compiled

Json = dict[str, Any]
Timer = Callable[[int], list[float]]  # number of repeats -> milliseconds of each

OURS = "Packhorse"
DEVICE = "device arrays"
FLOAT8 = "Packhorse, float8"
INT8 = "Packhorse, int8"
COMPILED = "torch.compile, varlen, CUDA graph"
GRAPH = "varlen, CUDA graph"
PADDED = "padded SDPA, eager"
NAIVE = "naive (the paper's), eager"
PEERS = (COMPILED, GRAPH, PADDED, NAIVE)

METHOD = f"""\
GPU time, of the encoder alone (ids on the device -> last hidden state on the device): repeats are \
queued one behind the other with a CUDA event between any two, and the intervals are the samples; \
medians over all samples of {{rounds}} rounds, in each of which every engine has its turn. Nothing \
is flushed: every engine finds in L2 what its own repeat before left there. Packhorse launches the \
graph that `run` would launch (Session._native.time_encoder, one upload before); "device arrays" \
are ids and offsets on the device, whose lengths the host does not know, to the hidden state in an \
output slot, by `Session.run`; eager PyTorch is \
timed as it queues itself, so with its launch gaps where the host is slower than the GPU. \
PyTorch's packed attention is {VARLEN}; torch.compile sees one layer (static shapes, default mode) \
and the whole encoder is then captured in one CUDA graph. Wall time is that of `Session.run`: ids \
in host memory -> embedding in host memory, with time.perf_counter. Errors are the largest \
absolute differences from PyTorch in float32 (no TF32) on the same weights, over all hidden \
states. One session per model serves all of its rows."""


def time_on_gpu(work: Callable[[], object], repeats: int) -> list[float]:
    """Returns the milliseconds between events around each of `repeats` calls, which are queued
    without a pause."""
    # Half a millisecond in which the queue fills.
    return intervals_ms([work] * repeats, first=lambda: torch.cuda._sleep(1_000_000))


def time_run(session: packhorse.Session, ids: Any, cu_seqlens: Any, repeats: int) -> list[float]:
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        session.run((ids, cu_seqlens), outputs=["embedding"])
        samples.append(1e3 * (time.perf_counter() - start))
    return samples


def time_device(session: packhorse.Session, batch: tuple[Any, Any], repeats: int) -> list[float]:
    stream = torch.cuda.current_stream()
    return time_on_gpu(lambda: session.run(batch, outputs=["hidden"], stream=stream), repeats)


def interleave(timers: dict[str, Timer], rounds: int) -> dict[str, list[float]]:
    """Times each engine for about a tenth of a second in each round."""
    repeats = {}
    for name, timer in timers.items():
        timer(3)
        repeats[name] = int(min(100, max(5, 100 / statistics.median(timer(3)))))
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            samples[name] += timer(repeats[name])
    return samples


class Bench:
    """One model, loaded by all engines that run it."""

    def __init__(self, model: Model, folder: Path, rounds: int, portable: bool) -> None:
        self.model, self.rounds = model, rounds
        weights = random_weights(model)
        self.session = load_session(model, weights, folder)
        # Sessions with fewer bits, by the names of their columns.
        self.others: dict[str, packhorse.Session] = {}
        if portable:
            self.others[INT8] = load_session(model, weights, folder, "int8")
        elif torch.cuda.get_device_capability(0) == (9, 0):
            self.others[FLOAT8] = load_session(model, weights, folder, "float8")
        sizes = (model.num_layers, model.num_heads)
        self.half = Encoder(weights, *sizes, torch.float16)
        self.exact = Encoder(weights, *sizes, torch.float32)

    def ours(self, workload: Workload) -> dict[str, Timer]:
        ids, cu_seqlens = workload.tokens()
        native: Any = self.session._native
        on_device = (torch.from_numpy(ids).cuda(), torch.from_numpy(cu_seqlens).cuda())
        timers: dict[str, Timer] = {
            OURS: lambda n: native.time_encoder(ids, cu_seqlens, n),
            DEVICE: lambda n: time_device(self.session, on_device, n),
            "run": lambda n: time_run(self.session, ids, cu_seqlens, n),
        }
        for name, session in self.others.items():
            other: Any = session._native
            timers[name] = partial(other.time_encoder, ids, cu_seqlens)
        return timers

    def peers(self, batch: Batch) -> tuple[dict[str, Timer], dict[str, Any], Json]:
        """Returns timers, hidden states [T, hidden_size] and errors of the peers, each by name."""
        encoder = self.half
        works: dict[str, Callable[[], Any]] = {
            COMPILED: lambda: encoder.packed(batch, compiled=True),
            GRAPH: lambda: encoder.packed(batch),
            PADDED: lambda: encoder.padded(batch),
            NAIVE: lambda: encoder.naive(batch),
        }
        timers: dict[str, Timer] = {}
        hidden: dict[str, Any] = {}
        failures: Json = {}
        for name, work in works.items():
            try:
                if name in (COMPILED, GRAPH):
                    graph, output = capture(work)
                    graph.replay()
                    work = graph.replay
                else:
                    output = work()[batch.mask]
            except Exception as error:  # a peer that fails must not end the run of the others
                failures[name] = f"{type(error).__name__}: {error}"
                print(f"{name} left out: {failures[name]}", file=sys.stderr)
                continue
            hidden[name] = output.float()
            timers[name] = partial(time_on_gpu, work)
        return timers, hidden, failures

    def measure(self, workload: Workload, with_peers: bool) -> Json:
        ids, cu_seqlens = workload.tokens()
        timers = self.ours(workload)
        errors: Json = {}
        failures: Json = {}
        if with_peers:
            batch = Batch.make(ids, cu_seqlens)
            forget_compiled()
            more, hidden, failures = self.peers(batch)
            timers |= more
            found = self.session.run((ids, cu_seqlens)).hidden
            hidden[OURS] = torch.from_numpy(found).cuda()
            for name, session in self.others.items():
                found = session.run((ids, cu_seqlens)).hidden
                hidden[name] = torch.from_numpy(found).cuda()
            expected = self.exact.padded(batch)[batch.mask]
            errors = {name: float((x - expected).abs().max()) for name, x in hidden.items()}
        samples = interleave(timers, self.rounds)
        times = {name: statistics.median(values) for name, values in samples.items()}
        flop = self.model.flop(workload.lengths())
        return {
            "name": workload.name,
            "tokens": int(cu_seqlens[-1]),
            "padded_tokens": workload.batch * workload.max_length,
            "lengths": workload.lengths(),
            "gflop": flop / 1e9,
            "tflop_per_second": flop / times[OURS] / 1e9,
            "milliseconds": times,
            "spread": {name: statistics.quantiles(x, n=10)[::8] for name, x in samples.items()},
            "samples": {name: len(values) for name, values in samples.items()},
            "times_faster": {name: time / times[OURS] for name, time in times.items()},
            "run_minus_gpu_us": 1e3 * (times["run"] - times[OURS]),
            "max_abs_error": errors,
            "failures": failures,
            "original_milliseconds": workload.original_ms,
        }


def markdown(result: Json) -> str:
    speed, accuracy = [], []
    for row in result["rows"]:
        times, errors = row["milliseconds"], row["max_abs_error"]
        cells = [
            f"{times[p]:.3f} ({row['times_faster'][p]:.2f})" if p in times else "-"
            for p in (DEVICE, FLOAT8, INT8, *PEERS)
        ]
        wall = f"{times['run']:.3f} ({row['run_minus_gpu_us']:+.0f} us)"
        ours = [f"{times[OURS]:.3f}", f"{row['tflop_per_second']:.0f}", wall]
        speed.append([row["name"], str(row["tokens"]), *ours, *cells])
        eager = errors.get(GRAPH)
        ratio = "-" if eager is None else f"{errors[OURS] / eager:.2f}"
        cells = [
            f"{errors[name]:.1e}" if name in errors else "-"
            for name in (OURS, FLOAT8, INT8, *PEERS)
        ]
        accuracy.append([row["name"], *cells, ratio])
    original = []
    for row in result["original_rows"]:
        ours, theirs = row["milliseconds"][OURS], row["original_milliseconds"]
        cells = [f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.2f}"]
        original.append([row["name"], str(row["tokens"]), *cells])
    return "\n\n".join(
        [
            origin(result),
            "Milliseconds, float16 where nothing else is said (in brackets: how many times faster "
            "Packhorse's GPU time in float16 is).",
            table(
                ["", "tokens", OURS, "TFLOP/s", "`run`, wall", DEVICE, FLOAT8, INT8, *PEERS], speed
            ),
            "Largest absolute error of hidden states, against PyTorch in float32.",
            table(["", OURS, FLOAT8, INT8, *PEERS, f"{OURS} / {GRAPH}"], accuracy),
            ORIGINAL,
            table(["", "tokens", OURS, "ByteTransformer", "times faster"], original),
            result["method"],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four workloads, fewer samples")
    parser.add_argument("--portable", action="store_true", help="the kernels of every device; int8")
    parser.add_argument("--only", default="", help="workloads whose names contain this: '8..32'")
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()

    start = time.perf_counter()
    torch.set_grad_enabled(False)
    if arguments.portable:  # sessions read these when they are loaded
        os.environ |= {"PACKHORSE_GEMM": "portable", "PACKHORSE_ATTENTION": "online"}
    rounds = 2 if arguments.quick else 5
    chosen = [
        workload
        for workload in WORKLOADS
        if (workload.quick or not arguments.quick) and arguments.only in workload.name
    ]
    originals = [workload for workload in ORIGINAL_WORKLOADS if arguments.only in workload.name]
    rows: list[Json] = []
    original_rows: list[Json] = []
    shared_memory = Path("/dev/shm")
    parent = shared_memory if os.access(shared_memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as temporary:
        for model in dict.fromkeys(workload.model for workload in chosen):
            bench = Bench(model, Path(temporary) / model.name, rounds, arguments.portable)
            for with_peers, workloads, results in (
                (True, chosen, rows),
                (False, originals, original_rows),
            ):
                for workload in workloads:
                    if workload.model is model:
                        results.append(bench.measure(workload, with_peers))
                        seconds = time.perf_counter() - start
                        print(f"{seconds:4.0f} s  {workload.name}", file=sys.stderr)
            del bench
            gc.collect()
            torch.cuda.empty_cache()

    result = result_of(
        method=METHOD.format(rounds=rounds),
        original=ORIGINAL,
        seconds=time.perf_counter() - start,
        rows=rows,
        original_rows=original_rows,
    )
    print(markdown(result))
    write(result, "gpu_portable" if arguments.portable else "gpu", arguments.out)


if __name__ == "__main__":
    main()
