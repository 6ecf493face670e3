"""Times the kernels on one GPU that memory limits: embedding, norms and pooling of large batches.

    python benchmarks/gpu/rows.py [--out FILE.json]

Prints Markdown and writes FILE.json (default: benchmarks/results/). METHOD below says how times are
measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from batches import uniform_lengths
from kernel_timing import intervals_ms, kernel_ms
from packhorse import ops
from results import origin, result_of, table, write
from torch import Tensor

ROUNDS, CALLS = 5, 10
SHAPES = ((65536, 768), (65536, 1024), (32768, 4096), (16384, 12288), (16384, 16384))
WORDS, LONGEST = 250002, 512
COPIED_BYTES, PUSHED_OUT_BYTES = 1 << 30, 256 << 20

METHOD = f"""\
Percent of the rate of a copy: bytes that have to be read and written, by the time of the kernels \
(PyTorch's profiler, CUPTI) and by what a copy of {COPIED_BYTES >> 30} GiB moves in a second \
(events). Medians over {ROUNDS} rounds of {CALLS} calls of packhorse.ops, whose results lie in new \
memory, float16; before each {PUSHED_OUT_BYTES >> 20} MiB of something else are copied. L2 then \
holds nothing of use, and what it has yet to write back of that copy falls on the call, as what \
the call leaves falls on the next. Pooling leaves next to nothing, so it is timed without that \
debt, too: after both copies were read. Words are at random of {WORDS} (XLM-RoBERTa's): each that \
occurs counts once; rows of positions and types do not count. Sequences uniform with mean about \
0.6 of {LONGEST} tokens. In brackets PyTorch's: compiled, on the same packed arrays, without what \
lies between its kernels; positions, which Packhorse looks up, are given to it; pooling is its \
segment_reduce and a compiled norm, and what it does to the lengths is left out. The check of ids \
and offsets, which a session does for all of a batch's work together, is left out, too."""


@dataclass(frozen=True)
class Work:
    name: str
    kernels: tuple[str, ...]  # parts of their names
    bytes_moved: int
    ours: Callable[[], Any]
    peer: Callable[[], Tensor] | None = None
    peer_kernels: tuple[str, ...] = ("",)
    writes_pending: bool = True  # whether L2 must still write back the data of other kernels


def torch_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return F.layer_norm(x.float(), x.shape[-1:], gamma, beta, 1e-12).half()


@torch.compile(dynamic=False)
def norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return torch_norm(x, gamma, beta)


@torch.compile(dynamic=False)
def residual_norm(x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return torch_norm(x.float() + residual, gamma, beta)


@torch.compile(dynamic=False)
def words_alone(ids: Tensor, word: Tensor) -> Tensor:
    return F.embedding(ids, word)


@torch.compile(dynamic=False)
def embedding_norm(
    ids: Tensor, positions: Tensor, tables: list[Tensor], gamma: Tensor, beta: Tensor
) -> Tensor:
    word, position, type = tables
    x = F.embedding(ids, word).float() + F.embedding(positions, position) + type[0]
    return torch_norm(x, gamma, beta)


@torch.compile(dynamic=False)
def unit_mean(x: Tensor, lengths: Tensor) -> Tensor:
    return F.normalize(torch.segment_reduce(x, "mean", lengths=lengths, unsafe=True), dim=-1)


def work_of(tokens: int, width: int) -> list[Work]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.float16)

    x, residual = normal(tokens, width), normal(tokens, width)
    gamma, beta = normal(width).float(), normal(width).float()
    tables = [normal(WORDS, width), normal(LONGEST, width), normal(2, width)]
    bounds = [0, *accumulate(uniform_lengths(2 * tokens // LONGEST, LONGEST))]
    bounds = [bound for bound in bounds if bound < tokens] + [tokens]
    cu_seqlens = torch.tensor(bounds, device="cuda", dtype=torch.int32)
    lengths = cu_seqlens.diff().long()
    ids = torch.randint(0, WORDS, (tokens,), device="cuda", dtype=torch.int32)
    places = torch.arange(tokens, device="cuda", dtype=torch.int32)
    sequences = torch.searchsorted(cu_seqlens, places, right=True) - 1
    positions = places - cu_seqlens[sequences]
    long_ids = ids.long()  # PyTorch computes positions in a table in the dtype of the ids
    once = 2 * tokens * width
    word_bytes = 2 * width * len(ids.unique())
    eps_norm = (gamma, beta, 1e-12)
    return [
        Work(
            "norm",
            ("norm_kernel",),
            2 * once,
            lambda: ops.layer_norm(x, gamma, beta),
            lambda: norm(x, gamma, beta),
        ),
        Work(
            "residual + norm",
            ("norm_kernel",),
            3 * once,
            lambda: ops.layer_norm(x, gamma, beta, residual=residual),
            lambda: residual_norm(x, residual, gamma, beta),
        ),
        Work(
            "rows of words alone",
            ("embed",),
            once + word_bytes,
            lambda: ops.embed(ids, cu_seqlens, tables[0]),
            lambda: words_alone(long_ids, tables[0]),
        ),
        Work(
            "embedding + norm",
            ("embed",),
            once + word_bytes,
            lambda: ops.embed(
                ids, cu_seqlens, tables[0], position=tables[1], type=tables[2], norm=eps_norm
            ),
            lambda: embedding_norm(long_ids, positions, tables, gamma, beta),
        ),
        *(
            Work(
                name,
                ("pool_kernel", "unit_length"),
                once,
                lambda: ops.pool(x, cu_seqlens, "mean", normalize=True),
                lambda: unit_mean(x, lengths),
                peer_kernels=("segment_reduce", "triton"),
                writes_pending=writes_pending,
            )
            for name, writes_pending in (
                ("pool + normalise", False),
                ("pool + normalise, others' writes pending", True),
            )
        ),
    ]


def copied_per_second() -> float:
    """The bytes per second that a copy reads and writes."""
    source = torch.empty(COPIED_BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    times = intervals_ms([lambda: target.copy_(source)] * (ROUNDS * CALLS))
    return 2e3 * COPIED_BYTES / statistics.median(times)


def measure(work: Work) -> dict[str, Any]:
    """Returns the milliseconds, and the largest difference between the results."""
    found: dict[str, Any] = {"name": work.name, "bytes": work.bytes_moved}
    out = torch.from_dlpack(work.ours())
    samples: dict[str, list[float]] = {"packhorse_ms": []}
    if work.peer is not None:
        found["difference"] = (out.float() - work.peer().float()).abs().max().item()
        samples["torch_ms"] = []
    other = torch.empty(2, PUSHED_OUT_BYTES, device="cuda", dtype=torch.uint8)

    def cold(call: Callable[[], Any]) -> Callable[[], Any]:
        def after_others() -> None:
            other[0].copy_(other[1])
            if not work.writes_pending:
                other.max()
            call()

        return after_others

    for _ in range(ROUNDS):
        samples["packhorse_ms"] += kernel_ms(cold(work.ours), CALLS, work.kernels)
        if work.peer is not None:
            samples["torch_ms"] += kernel_ms(cold(work.peer), CALLS, work.peer_kernels)
    return {**found, **{name: statistics.median(times) for name, times in samples.items()}}


def markdown(result: dict[str, Any]) -> str:
    names = [work["name"] for work in result["shapes"][0]["work"]]
    rows = []
    for shape in result["shapes"]:
        row = [f"{shape['tokens']} x {shape['width']}"]
        for work in shape["work"]:
            percent = {
                who: 100 * work["bytes"] / work[who] * 1e3 / result["copied_per_second"]
                for who in ("packhorse_ms", "torch_ms")
                if who in work
            }
            peer = f" ({percent['torch_ms']:.0f})" if "torch_ms" in percent else ""
            row.append(f"{percent['packhorse_ms']:.0f}{peer}")
        rows.append(row)
    rate = f"A copy moves {result['copied_per_second'] / 1e9:.0f} GB/s."
    return "\n\n".join([origin(result), rate, table(["T x E", *names], rows), result["method"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shapes = [
        {
            "tokens": tokens,
            "width": width,
            "work": [measure(work) for work in work_of(tokens, width)],
        }
        for tokens, width in SHAPES
    ]
    result = result_of(method=METHOD, copied_per_second=copied_per_second(), shapes=shapes)
    print(markdown(result))
    write(result, "gpu_rows", arguments.out)


if __name__ == "__main__":
    main()
