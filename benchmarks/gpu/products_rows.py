"""Dense layers of few rows beside the time that their weights take to be read, and cuBLAS."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from products_library import Library, Product, product, sm_count
from products_timing import capture, copies_of, in_rounds, launches_of, table_head, table_line

ROWS = (1, 4, 8, 16, 32, 64)
WEIGHTS = (  # k, n
    *((768, 2304), (768, 768), (768, 3072), (3072, 768)),
    *((1600, 4800), (1600, 1600), (1600, 6400), (6400, 1600)),
    *((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048)),
    *((4096, 6144), (4096, 4096), (4096, 24576), (12288, 4096)),
    *((4096, 12288), (4096, 16384), (16384, 4096)),
    *((5120, 15360), (5120, 5120), (20480, 5120)),
    *((12288, 12288), (2048, 128256)),
)
LARGE_BYTES = 64_000_000  # weights from this size on have marks of their own
MOST_ABOVE_FLOOR_US = 1.5
LEAST_OF_COPY_RATE = 0.9
ROUNDS = 15
HEADER = ["k -> n", "rows", "floor us", "mark us", "one part", "parts", "in parts", "F.linear us"]

METHOD = f"""\
bfloat16, without bias; weights rotate through 300 MB or more, activations lie in L2, the row \
count lies in device memory, as in a recorded step. Medians over up to {ROUNDS} rounds, in which \
graphs of 24 launches or more take turns (96 for weights below 64 MB). Floor: the bytes of the \
weight by the rate of the copy. Mark: floor + {MOST_ABOVE_FLOOR_US} us for weights below 64 MB, \
and {100 * LEAST_OF_COPY_RATE:.0f} % of the rate of the copy from there on. "few": \
launch_gemm_skinny; otherwise the tile of launch_gemm_sm90. F.linear is PyTorch's, with its \
defaults, in a CUDA graph."""


def mark_of(size: int, floor: float) -> float:
    """The most microseconds that a product with a weight of `size` bytes should take."""
    return floor + MOST_ABOVE_FLOOR_US if size < LARGE_BYTES else floor / LEAST_OF_COPY_RATE


class Layer:
    """The buffers of one weight's shape, and its launches."""

    def __init__(self, library: Library, k: int, n: int, most_rows: int) -> None:
        options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.library = library
        self.size = 2 * n * k
        self.weights = torch.empty(copies_of(self.size), n, k, **options).normal_(std=k**-0.5)
        self.x = torch.randn(most_rows, k, **options)
        self.out = torch.empty(most_rows, n, **options)
        self.counts = torch.arange(most_rows + 1, device="cuda", dtype=torch.int32)
        self.parts = library.parts_of(n, k, sm_count())
        self.launches = launches_of(len(self.weights), 96 if self.size < LARGE_BYTES else 24)

    def product(self, rows: int, parts: int, i: int = 0) -> Product:
        weight, count = self.weights[i % len(self.weights)], self.counts[rows:]
        return product(self.x[:rows], weight, self.out, row_count=count, parts=parts)

    def ours(self, rows: int, parts: int) -> Callable[[int], object]:
        return lambda i: self.library.run(self.product(rows, parts, i))

    def peer(self, rows: int) -> Callable[[int], object]:
        return lambda i: F.linear(self.x[:rows], self.weights[i % len(self.weights)])

    def check(self, all_rows: Sequence[int]) -> str:
        """Compares results with float64, and rows of few with those of many bit by bit. Returns
        what is wrong, or nothing."""
        expected = self.x.double() @ self.weights[0].double().t()
        for parts in sorted({1, self.parts}):
            self.ours(len(self.x), parts)(0)
            whole = self.out.clone()
            for rows in all_rows:
                self.out.fill_(float("nan"))
                self.ours(rows, parts)(0)
                found = self.out[:rows]
                # Rounding to bfloat16 is off by one part in 256 at most.
                error = (found.double() - expected[:rows]).abs() - expected[:rows].abs() / 256
                if not error.max().item() <= 1e-3:
                    return f"{rows} rows in {parts} parts: off by {error.max().item():.3g}"
                if not torch.equal(found.view(torch.int16), whole[:rows].view(torch.int16)):
                    return f"{rows} rows in {parts} parts: other bits than of {len(self.x)} rows"
        return ""

    def measure(self, all_rows: Sequence[int], stop: float) -> list[dict[str, Any]]:
        """Returns a line for each number of rows."""
        graphs = {}
        for rows in all_rows:
            graphs[f"{rows}, torch"] = capture(self.peer(rows), self.launches)
            for parts in {1, self.parts}:
                graphs[f"{rows}, {parts}"] = capture(self.ours(rows, parts), self.launches)
        times = {name: us / self.launches for name, us in in_rounds(graphs, ROUNDS, stop).items()}
        return [
            {
                "rows": rows,
                "parts": self.parts,
                "one_part_us": times[f"{rows}, 1"],
                "one_part_kernel": self.library.kernel_of(self.product(rows, 1)),
                "in_parts_us": times[f"{rows}, {self.parts}"],
                "in_parts_kernel": self.library.kernel_of(self.product(rows, self.parts)),
                "torch_us": times[f"{rows}, torch"],
            }
            for rows in all_rows
        ]


def measure_rows(
    library: Library,
    all_rows: Sequence[int],
    copied_per_us: float,
    seconds: float,
    done: Callable[[dict[str, Any]], None],
) -> None:
    """Prints a line for each weight and number of rows, and gives it to `done`; whatever is not
    begun after `seconds` is left out."""
    print(f"## Few rows\n\n{METHOD}\n\n{table_head(HEADER)}")
    begin = time.monotonic()
    met = {"one_part": 0, "in_parts": 0, "torch": 0}
    count = 0
    for index, (k, n) in enumerate(WEIGHTS):
        left = begin + seconds - time.monotonic()
        if left <= 0:
            print(f"\nOut of time: {len(WEIGHTS) - index} weights are left out.")
            break
        layer = Layer(library, k, n, max(ROWS))
        wrong = layer.check(all_rows)
        stop = time.monotonic() + left / (len(WEIGHTS) - index)
        floor = layer.size / copied_per_us
        mark = mark_of(layer.size, floor)
        for line in layer.measure(all_rows, stop):
            done({"k": k, "n": n, "floor_us": floor, "mark_us": mark, **line, "wrong": wrong})
            cells = [f"{k} -> {n}", line["rows"], f"{floor:.2f}", f"{mark:.2f}"]
            for way in ("one_part", "in_parts"):
                verdict = "met" if line[f"{way}_us"] <= mark else "missed"
                cells += [f"{line[f'{way}_us']:.2f} ({line[f'{way}_kernel']}) {verdict}"]
            cells.insert(5, layer.parts)
            print(table_line([*cells, f"{line['torch_us']:.2f}"]), flush=True)
            met = {way: met[way] + (line[f"{way}_us"] <= mark) for way in met}
            count += 1
        if wrong:
            print(f"\nWRONG at {k} -> {n}: {wrong}\n", flush=True)
        del layer
        torch.cuda.empty_cache()
    print(
        f"\nMarks met, of {count}: {met['one_part']} with one part, {met['in_parts']} in parts,"
        f" {met['torch']} by F.linear. {time.monotonic() - begin:.0f} s.\n",
        flush=True,
    )
