"""Shows where an encoder's time on the GPU goes: each kernel of a layer beside its lower bound.

    python benchmarks/gpu/kernel_profile.py ["BERT-base 16 x 512" ...]

Times are those of kernels inside the CUDA graph that `run` launches, medians over passes and
layers. They come from PyTorch's profiler (CUPTI), which sees every kernel of the process. A gap is
the idle time before a kernel. If it is negative, the kernel began while the one before still ran
and waited for it, so its own time is duration + gap. The floor, a lower bound, is the larger of
bytes / 4.1 TB/s (rows are read and written once, weights read once) and FLOP / 745 TFLOP/s. The
profiler itself makes kernels of a few microseconds look up to half a microsecond longer.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from batches import WORKLOADS, Model, Workload, load_session, random_weights
from kernel_timing import named_spans
from torch.profiler import ProfilerActivity, profile

BYTES_PER_US = 4.1e6
FLOP_PER_US = 745e6

LAYER = ("QKV", "attention", "output + residual", "norm", "up + GELU", "down + residual", "norm")


def floors(model: Model, lengths: list[int]) -> list[float]:
    """The lower bounds in microseconds, in the order of LAYER."""
    rows, width = sum(lengths), model.hidden_size

    def product(n: int, k: int, residual: bool = False) -> float:
        moved = 2 * (rows * (k + n * (1 + residual)) + n * k)
        return max(moved / BYTES_PER_US, 2 * rows * n * k / FLOP_PER_US)

    attention = max(
        2 * 4 * rows * width / BYTES_PER_US, 4 * sum(x * x for x in lengths) * width / FLOP_PER_US
    )
    norm = 2 * 2 * rows * width / BYTES_PER_US
    return [
        product(3 * width, width),
        attention,
        product(width, width, residual=True),
        norm,
        product(4 * width, width),
        product(width, 4 * width, residual=True),
        norm,
    ]


def report(session: Any, workload: Workload) -> str:
    model = workload.model
    ids, cu_seqlens = workload.tokens()
    whole = 1e3 * statistics.median(session._native.time_encoder(ids, cu_seqlens, 50))
    spans = named_spans(lambda: session._native.time_encoder(ids, cu_seqlens, 20))
    # The copy of the inputs comes once, ahead of all passes.
    events = [span for span in spans if "packhorse" in span[2] and "small_copy" not in span[2]]
    per_pass = 1 + len(LAYER) * model.num_layers  # the embedding, then all layers
    passes = len(events) // per_pass
    if len(events) % per_pass:
        raise SystemExit(f"{len(events)} kernels are no multiple of {per_pass}: LAYER is outdated")
    lines = [
        f"## {workload.name}: {len(ids)} tokens, {whole:.1f} us, {per_pass} kernels",
        "",
        "| kernel | us | gap before | floor |",
        "|---|---:|---:|---:|",
    ]
    total = 0.0
    limits = floors(model, workload.lengths())
    for place, name in enumerate(("embedding", *LAYER)):
        first = range(place, place + 1) if place == 0 else range(place, per_pass, len(LAYER))
        places = [p * per_pass + i for p in range(passes // 2, passes) for i in first]
        time = statistics.median(events[i][1] - events[i][0] for i in places)
        gap = statistics.median(events[i][0] - events[i - 1][1] for i in places)
        total += (time + gap) * len(first)
        floor = f"{limits[place - 1]:.1f}" if place else ""
        lines.append(f"| {name} | {time:.1f} | {gap:.1f} | {floor} |")
    floor = sum(limits) * model.num_layers
    lines.append(
        f"| all, with gaps, over {model.num_layers} layers | {total:.0f} | | {floor:.0f} |"
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    chosen = [w for w in WORKLOADS if w.name in sys.argv[1:] or not sys.argv[1:]]
    if not chosen:
        raise SystemExit("expected names among: " + ", ".join(w.name for w in WORKLOADS))
    with profile(activities=[ProfilerActivity.CUDA]):  # CUPTI must see how the graphs are created
        torch.cuda.synchronize()
    for model in dict.fromkeys(workload.model for workload in chosen):
        with tempfile.TemporaryDirectory() as folder:
            session = load_session(model, random_weights(model), Path(folder))
        for workload in chosen:
            if workload.model is model:
                print(report(session, workload), flush=True)


if __name__ == "__main__":
    main()
