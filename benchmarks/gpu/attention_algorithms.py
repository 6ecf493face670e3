"""Times the algorithms of attention beside each other on one GPU, and beside FlashAttention-2.

    python benchmarks/gpu/attention_algorithms.py [--out FILE.json]

These are ByteTransformer's two kernels (arXiv 2210.03052), the portable kernel and Hopper's kernel
with an online softmax, and the FlashAttention-2 of PyTorch, on packed sequences of 128 to 1024
tokens. Prints Markdown and writes FILE.json (default: benchmarks/results/). METHOD below says how
times are measured.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from attention import CALLS, FLASH, ROUNDS, Case, exact, torch_attention
from kernel_timing import kernel_ms
from packhorse import ops
from results import origin, result_of, table, write
from torch import Tensor

METHOD = f"""\
Time of the kernels of a call on the GPU, as PyTorch's profiler (CUPTI) sees them, without what \
lies between them: medians over {ROUNDS} rounds of {CALLS} calls, in each of which all have their \
turn, on the same packed bfloat16 arrays, which are in L2 where they fit. Packhorse is \
packhorse.ops.attention(algorithm=...), PyTorch {FLASH} (FlashAttention-2). \
Lengths are uniform with mean about 0.6 of the longest, or all the longest. Errors are the largest \
absolute differences from float32 on the first, longest sequence."""

ALGORITHMS = ("hopper", "online", "short", "grouped")
CASES = tuple(
    Case(12, 64, batch, longest, 0.0, full=full)
    for full in (False, True)
    for batch, longest in ((16, 128), (64, 128), (16, 256), (16, 384), (16, 512), (16, 1024))
)


def measure(case: Case) -> dict[str, Any]:
    lengths = case.lengths()
    width = case.heads * case.head_dim
    bounds = [0, *accumulate(lengths)]
    q, k, v = (torch.randn(bounds[-1], width, device="cuda").bfloat16() for _ in range(3))
    offsets = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    host = offsets.cpu().numpy()

    def run(name: str) -> Tensor:
        if name == "flash2":
            return torch_attention(q, k, v, offsets, case)
        found = ops.attention(q, k, v, host, num_heads=case.heads, algorithm=name)
        result: Tensor = torch.from_dlpack(found)
        return result

    names = (*ALGORITHMS, "flash2")
    first = [x[: lengths[0]] for x in (q, k, v)]
    expected = exact(first[0], first[1], first[2], case)
    errors = {
        name: (run(name)[: lengths[0]].float() - expected).abs().max().item() for name in names
    }
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            samples[name] += kernel_ms(lambda name=name: run(name), CALLS)
    return {
        "case": case.name,
        "tokens": bounds[-1],
        "longest": case.longest,
        "ms": {name: statistics.median(times) for name, times in samples.items()},
        "error": errors,
    }


def markdown(result: dict[str, Any]) -> str:
    titles = ["heads x head_dim, batch x max", "tokens"]
    titles += [f"{name}, us" for name in (*ALGORITHMS, "FlashAttention-2")] + ["largest error"]
    rows = []
    for found in result["rows"]:
        times = [
            # Beyond the longest sequence of the kernel, the general kernel runs in its place.
            "" if name == "short" and found["longest"] > 384 else f"{1e3 * ms:.1f}"
            for name, ms in found["ms"].items()
        ]
        worst = max(found["error"].values())
        rows.append([found["case"], str(found["tokens"]), *times, f"{worst:.1e}"])
    return "\n\n".join([origin(result), table(titles, rows), result["method"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    result = result_of(method=METHOD, rows=[measure(case) for case in CASES])
    print(markdown(result))
    write(result, "gpu_attention_algorithms", arguments.out)


if __name__ == "__main__":
    main()
