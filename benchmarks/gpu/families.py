"""Times families beyond BERT on one GPU, Packhorse and peers side by side in one run, in float16.

    python benchmarks/gpu/families.py [NAME ...] [--out FILE.json]

Models have random weights in a published model's shape; lengths are uniform with a mean of about
0.6 of the longest. Prints Markdown and writes FILE.json (default: benchmarks/results/). METHOD
below says how times are measured. To add a family, add an entry to CASES.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from batches import Json, load_session, random_weights, uniform_lengths
from encoders import OURS, Timer, interleave, time_on_gpu
from results import origin, result_of, table, write
from torch import Tensor
from torch_encoders import Batch, capture, forget_compiled
from torch_modernbert import PACKED_ATTENTION, ModernBert

ROUNDS = 5

METHOD = f"""\
GPU time, of the encoder alone (ids on the device -> last hidden state on the device), as \
benchmarks/gpu/encoders.py measures it: repeats queued one behind the other with a CUDA event \
between any \
two, medians over all samples of {ROUNDS} rounds, in each of which every engine has its turn. \
Packhorse launches the graph that `run` would launch. PyTorch's packed attention is \
{PACKED_ATTENTION}; torch.compile sees one layer (static shapes, default mode), and the whole \
encoder is then captured in one CUDA graph. Errors are differences from PyTorch in float32 (no \
TF32) on the same weights, sequence by sequence, over all hidden states: the largest, and the norm \
of all relative to that of the hidden states."""

Weights = Mapping[str, Tensor]
# A name -> a function that returns hidden states [T, hidden_size], and whether to capture it in a
# CUDA graph.
Peers = dict[str, tuple[Callable[[], Tensor], bool]]


@dataclass(frozen=True)
class Case:
    name: str
    spec: Json
    batch: int
    max_length: int
    max_tokens: int  # for loading the session; at least the sum of the lengths
    peers: Callable[[Weights, Json, Batch], Peers]
    exact: Callable[[Weights, Json, Batch], Tensor]  # computes hidden states in float32
    marks: dict[str, float] = field(default_factory=dict)  # our goals: speed relative to a peer

    @property
    def max_sequences(self) -> int:
        return self.batch

    def tokens(self) -> tuple[Any, Any]:
        """ids int32 [T] and cu_seqlens int32 [B + 1]."""
        lengths = uniform_lengths(self.batch, self.max_length)
        cu_seqlens = np.cumsum([0, *lengths], dtype=np.int32)
        ids = np.random.default_rng(1).integers(0, self.spec["vocab_size"], cu_seqlens[-1])
        return ids.astype(np.int32), cu_seqlens


COMPILED = "torch.compile, varlen, CUDA graph"
GRAPH = "varlen, CUDA graph"

MODERNBERT: Json = {
    "format": 1,
    "family": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_layers": 22,
    "num_heads": 12,
    "intermediate_size": 1152,
    "max_seqlen": 8192,
    "positions": {"kind": "none"},
    "norm": {
        "kind": "layer",
        "placement": "pre",
        "eps": 1e-5,
        "bias": False,
        "first_attention": False,
    },
    "attention": {
        "mask": "bidirectional",
        "qkv_bias": False,
        "output_bias": False,
        "local": {"window": 64, "layers": [i for i in range(22) if i % 3]},
        "rope": {"theta": 160000.0, "local_theta": 10000.0},
    },
    "ffn": {"kind": "gated", "activation": "gelu", "up_bias": False, "down_bias": False},
    "embedding": {"pooling": "cls", "normalize": True},
}


def modernbert_peers(weights: Weights, spec: Json, batch: Batch) -> Peers:
    model = ModernBert(weights, spec, torch.float16)
    return {
        COMPILED: (lambda: model.packed(batch, compiled=True), True),
        GRAPH: (lambda: model.packed(batch), True),
    }


def modernbert_exact(weights: Weights, spec: Json, batch: Batch) -> Tensor:
    return ModernBert(weights, spec, torch.float32).exact(batch)


def modernbert(batch: int, max_length: int) -> Case:
    return Case(
        f"ModernBERT-base {batch} x {max_length}",
        MODERNBERT,
        batch,
        max_length,
        max_tokens=-(-sum(uniform_lengths(batch, max_length)) // 1024) * 1024,
        peers=modernbert_peers,
        exact=modernbert_exact,
        marks={COMPILED: 1.3},
    )


CASES = (modernbert(16, 512), modernbert(16, 8192))


def measure(case: Case, folder: Path) -> Json:
    weights = random_weights(case)
    session: Any = load_session(case, weights, folder)
    ids, cu_seqlens = case.tokens()
    timers: dict[str, Timer] = {OURS: lambda n: session._native.time_encoder(ids, cu_seqlens, n)}
    batch = Batch.make(ids, cu_seqlens)
    expected = case.exact(weights, case.spec, batch)
    hidden = {OURS: torch.from_numpy(session.run((ids, cu_seqlens)).hidden).cuda()}
    failures: Json = {}
    forget_compiled()
    for name, (work, captured) in case.peers(weights, case.spec, batch).items():
        try:
            if captured:
                graph, output = capture(work)
                graph.replay()
                work = graph.replay
            else:
                output = work()
        except Exception as error:  # a peer that fails must not end the run of the others
            failures[name] = f"{type(error).__name__}: {error}"
            print(f"{name} left out: {failures[name]}", file=sys.stderr)
            continue
        hidden[name] = output.float()
        timers[name] = partial(time_on_gpu, work)
    samples = interleave(timers, ROUNDS)
    times = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "name": case.name,
        "tokens": len(ids),
        "lengths": np.diff(cu_seqlens).tolist(),
        "milliseconds": times,
        "spread": {name: statistics.quantiles(x, n=10)[::8] for name, x in samples.items()},
        "microseconds_per_token": 1e3 * times[OURS] / len(ids),
        "times_faster": {name: time / times[OURS] for name, time in times.items()},
        "marks": case.marks,
        "max_abs_error": {name: float((x - expected).abs().max()) for name, x in hidden.items()},
        "relative_error": {
            name: float((x - expected).norm() / expected.norm()) for name, x in hidden.items()
        },
        "failures": failures,
    }


def markdown(result: Json) -> str:
    cells = []
    for row in result["rows"]:
        for name, milliseconds in row["milliseconds"].items():
            faster, mark = row["times_faster"][name], row["marks"].get(name)
            cells.append(
                [
                    row["name"],
                    str(row["tokens"]),
                    name,
                    f"{milliseconds:.3f}",
                    f"{faster:.2f}" + (f" (mark {mark})" if mark else ""),
                    f"{row['max_abs_error'][name]:.1e}",
                    f"{row['relative_error'][name]:.1e}",
                ]
            )
    header = ["", "tokens", "engine", "ms", f"{OURS} is faster", "largest error", "relative error"]
    return "\n\n".join([origin(result), table(header, cells), result["method"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="cases, by name; default: all")
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if case.name in arguments.names or not arguments.names]
    if not chosen:
        raise SystemExit("expected names among: " + ", ".join(case.name for case in CASES))
    torch.set_grad_enabled(False)
    rows = []
    start = time.perf_counter()
    for case in chosen:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            rows.append(measure(case, Path(folder)))
        torch.cuda.empty_cache()
        print(f"{time.perf_counter() - start:4.0f} s  {case.name}", file=sys.stderr)
    result = result_of(method=METHOD, rows=rows)
    print(markdown(result))
    write(result, "gpu_families", arguments.out)


if __name__ == "__main__":
    main()
