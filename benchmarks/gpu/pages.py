"""Times attention of single new tokens over pages on one GPU, beside the rate of a copy.

    python benchmarks/gpu/pages.py [--out FILE.json]

Prints Markdown and writes FILE.json (default: benchmarks/results/). METHOD below says how it is
measured.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from kernel_timing import intervals_ms, kernel_ms
from packhorse import ops
from results import origin, result_of, table, write

CONTEXT = 1024
CALLS = 12
ROUNDS = 3
CACHES = 3

METHOD = f"""\
Time of the kernels of packhorse.ops.paged_attention on the GPU, as PyTorch's profiler \
(CUPTI) sees them, without what lies between them: medians over {ROUNDS} rounds of {CALLS} calls, \
which take {CACHES} caches in turn, so that keys and values come from memory. Every sequence has \
{CONTEXT} tokens, of which one is new and is appended by the call; pages are in random order, \
bfloat16. MB: of keys and values. Of a copy: their bytes over the time, relative to the bytes that \
a copy of 1 GB reads and writes a second in the same run."""


@dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    head_dim: int
    sequences: int

    @property
    def bytes(self) -> int:
        return 2 * 2 * self.sequences * CONTEXT * self.kv_heads * self.head_dim


def cases() -> list[Case]:
    found = []
    for head_dim in (64, 128):
        for kv_heads in (32, 8, 4):
            for megabytes in (64, 128, 256, 512):
                each = Case(32, kv_heads, head_dim, 1).bytes
                found.append(Case(32, kv_heads, head_dim, (megabytes << 20) // each))
    return found


def copy_rate() -> float:
    """Bytes read and written in a second."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = intervals_ms([lambda: target.copy_(source)] * 20)
    return 2e3 * len(source) / statistics.median(times)


def measure(case: Case, copied: float) -> dict[str, Any]:
    page = ops.PAGE_TOKENS
    pages_each = -(-CONTEXT // page)
    pages = case.sequences * pages_each
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    shape = (pages, case.kv_heads, page, case.head_dim)
    caches = [[torch.randn(shape, **options) for _ in range(2)] for _ in range(CACHES)]
    q = torch.randn(case.sequences, case.heads * case.head_dim, **options)
    k, v = (torch.randn(case.sequences, case.kv_heads * case.head_dim, **options) for _ in range(2))
    places = torch.randperm(pages).view(case.sequences, pages_each).int().numpy()
    offsets = list(range(case.sequences + 1))
    lengths = [CONTEXT] * case.sequences
    stream = torch.cuda.current_stream()
    turn = 0

    def call() -> None:
        nonlocal turn
        keys, values = caches[turn % CACHES]
        turn += 1
        ops.paged_attention(
            q, keys, values, offsets, places, lengths, num_heads=case.heads, k=k, v=v, stream=stream
        )

    call()
    samples = [
        ms for _ in range(ROUNDS) for ms in kernel_ms(call, CALLS, names=("paged_attention",))
    ]
    seconds = statistics.median(samples) / 1e3
    return {
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "sequences": case.sequences,
        "megabytes": case.bytes / 1e6,
        "microseconds": seconds * 1e6,
        "bytes_per_second": case.bytes / seconds,
        "of_copy": case.bytes / seconds / copied,
    }


def markdown(result: dict[str, Any]) -> str:
    titles = ["heads, of keys, head_dim", "sequences", "MB", "us", "TB/s", "of a copy"]
    rows = [
        [
            f"{row['heads']}, {row['kv_heads']}, {row['head_dim']}",
            str(row["sequences"]),
            f"{row['megabytes']:.0f}",
            f"{row['microseconds']:.1f}",
            f"{row['bytes_per_second'] / 1e12:.2f}",
            f"{row['of_copy']:.0%}",
        ]
        for row in result["rows"]
    ]
    copied = f"A copy: {result['copy_bytes_per_second'] / 1e12:.2f} TB/s"
    return "\n\n".join([origin(result), copied, table(titles, rows), result["method"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    copied = copy_rate()
    rows = [measure(case, copied) for case in cases()]
    result = result_of(method=METHOD, copy_bytes_per_second=copied, rows=rows)
    print(markdown(result))
    write(result, "gpu_pages", arguments.out)


if __name__ == "__main__":
    main()
