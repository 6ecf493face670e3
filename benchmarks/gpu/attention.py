"""Times attention over packed sequences on one GPU beside PyTorch's, in bfloat16.

    python benchmarks/gpu/attention.py [--out FILE.json]

Lengths are uniform with a mean of about 0.6 of the longest, or all equal to the longest. Prints
Markdown and writes FILE.json (default: benchmarks/results/). METHOD below says how times are
measured.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from batches import uniform_lengths
from kernel_timing import kernel_ms
from packhorse import ops
from results import origin, result_of, table, write
from torch import Tensor

ROUNDS, CALLS = 5, 10
FLASH = "torch.ops.aten._flash_attention_forward"

METHOD = f"""\
Time of the kernels of a call on the GPU, as PyTorch's profiler (CUPTI) sees them, without what \
lies between them: medians over {ROUNDS} rounds of {CALLS} calls, in each of which both have their \
turn. Packhorse is packhorse.ops.attention, PyTorch {FLASH} (FlashAttention-2, \
under torch.nn.attention.varlen too); both wait for each call, on the same packed arrays, which \
are in L2 where they fit. FlashAttention-3: the variable-length forward of its public Hopper code \
with the kernel for its metadata, on an NVIDIA H200 (driver 580.159, 2026-11-20), another run. \
Errors are the largest absolute differences from float32 on the first, longest sequence."""


@dataclass(frozen=True)
class Case:
    heads: int
    head_dim: int
    batch: int
    longest: int
    flash3_ms: float
    causal: bool = False
    full: bool = False  # whether all sequences have the longest length

    @property
    def name(self) -> str:
        options = ", full length" * self.full + ", causal" * self.causal
        return f"{self.heads}x{self.head_dim}, {self.batch} x {self.longest}{options}"

    def lengths(self) -> list[int]:
        longest = [self.longest] * self.batch
        return longest if self.full else uniform_lengths(self.batch, self.longest)


CASES = (
    Case(12, 64, 64, 128, 0.038),
    Case(12, 64, 64, 256, 0.060),
    Case(12, 64, 32, 384, 0.052),
    Case(12, 64, 32, 512, 0.066),
    Case(12, 64, 16, 1024, 0.079),
    Case(12, 64, 8, 2048, 0.134),
    Case(12, 64, 4, 4096, 0.362),
    Case(12, 64, 2, 16384, 2.28),
    Case(16, 128, 16, 1024, 0.142),
    Case(16, 128, 4, 8192, 1.94),
    Case(16, 128, 4, 8192, 1.16, causal=True),
    Case(16, 128, 2, 16384, 6.94, full=True),
    Case(16, 128, 2, 16384, 3.44, causal=True, full=True),
    Case(16, 64, 2, 16384, 4.19, full=True),
)


def torch_attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, case: Case) -> Tensor:
    heads = [x.view(-1, case.heads, case.head_dim) for x in (q, k, v)]
    out: Tensor = torch.ops.aten._flash_attention_forward(
        *heads, offsets, offsets, case.longest, case.longest, 0.0, case.causal, False
    )[0]
    return out.view_as(q)


def exact(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Computes attention one sequence and one head at a time, in float32."""
    rows = torch.arange(len(q), device="cuda")
    hidden = rows[:, None] < rows if case.causal else None
    heads = []
    for columns in torch.arange(q.shape[1]).split(case.head_dim):
        part = [x[:, columns].float() for x in (q, k, v)]
        scores = part[0] @ part[1].T * case.head_dim**-0.5
        if hidden is not None:
            scores.masked_fill_(hidden, float("-inf"))
        heads.append(scores.softmax(-1) @ part[2])
    return torch.cat(heads, dim=1)


def measure(case: Case) -> dict[str, Any]:
    lengths = case.lengths()
    width = case.heads * case.head_dim
    bounds = [0, *accumulate(lengths)]
    q, k, v = (torch.randn(bounds[-1], width, device="cuda").bfloat16() for _ in range(3))
    offsets = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    host = offsets.cpu().numpy()

    def ours() -> Any:
        return ops.attention(q, k, v, host, num_heads=case.heads, causal=case.causal)

    def peer() -> Tensor:
        return torch_attention(q, k, v, offsets, case)

    first = [x[: lengths[0]] for x in (q, k, v)]
    expected = exact(first[0], first[1], first[2], case)
    errors = [
        (out[: lengths[0]].float() - expected).abs().max().item()
        for out in (torch.from_dlpack(ours()), peer())
    ]
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for work, times in zip((ours, peer), samples, strict=True):
            times += kernel_ms(work, CALLS)
    packhorse_ms, torch_ms = map(statistics.median, samples)
    flop = 4 * width * sum(n * n for n in lengths) // (2 if case.causal else 1)
    return {
        **asdict(case),
        "tokens": bounds[-1],
        "packhorse_ms": packhorse_ms,
        "torch_ms": torch_ms,
        "tflops": flop / packhorse_ms / 1e9,
        "packhorse_error": errors[0],
        "torch_error": errors[1],
    }


def markdown(result: dict[str, Any]) -> str:
    titles = ["heads x head_dim, batch x max", "tokens", "Packhorse, ms", "TFLOP/s"]
    titles += [
        "torch varlen",
        "times faster",
        "FlashAttention-3",
        "times faster",
        "error",
        "torch's",
    ]
    rows = []
    for case, found in zip(CASES, result["rows"], strict=True):
        ms = found["packhorse_ms"]
        row = [case.name, str(found["tokens"]), f"{ms:.4g}", f"{found['tflops']:.0f}"]
        for peer in (found["torch_ms"], case.flash3_ms):
            row += [f"{peer:.4g}", f"{peer / ms:.2f}"]
        rows.append([*row, f"{found['packhorse_error']:.1e}", f"{found['torch_error']:.1e}"])
    return "\n\n".join([origin(result), table(titles, rows), result["method"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = [measure(case) for case in CASES]
    result = result_of(method=METHOD, rows=rows)
    print(markdown(result))
    write(result, "gpu_attention", arguments.out)


if __name__ == "__main__":
    main()
