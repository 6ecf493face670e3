"""Products of e4m3 matrices beside torch._scaled_mm, as fast as power lets them go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from products_library import Library, product
from products_timing import (
    capture,
    copies_of,
    launches_of,
    sustained,
    table_head,
    table_line,
)

SHAPES = (  # rows, n, k
    *((5280, 2304, 768), (5280, 3072, 768), (5280, 768, 3072), (5280, 768, 768)),
    *((21760, 2304, 768), (21760, 768, 768), (21760, 3072, 768), (21760, 768, 3072)),
    *((10304, 3072, 1024), (10304, 1024, 1024), (10304, 4096, 1024), (10304, 1024, 4096)),
    *((32768, 4096, 1024), (8192, 8192, 8192)),
)
OURS = ("16 bits", "e4m3", "GELU, e4m3")
FAST, PRECISE, HALF = "_scaled_mm, fast", "_scaled_mm", "float16 addmm"
# Marks: the least ratio of _scaled_mm's time to ours.
LEAST_RATIOS = {"16 bits": 1.0, "e4m3": 1.0, "GELU, e4m3": 1 / 1.1}
TURNS = 3
UNIT = 100.0  # the standard deviation of the numbers that are rounded to e4m3, of at most 448
OUT_FACTOR = 28.0  # factor of e4m3 results: those of up to 16 are not limited
CHECKED_ROWS = 256
MOST_ERROR = {"16 bits": 5e-3, "e4m3": 5e-2, "GELU, e4m3": 5e-2, FAST: 5e-3, PRECISE: 5e-3}

METHOD = """\
TFLOP/s. Ours add a bias; the input has a scale for each row, the weight one for each feature, \
and so have those of _scaled_mm, which adds no bias and gives bfloat16, with use_fast_accum=True \
("fast") and without. Operands rotate through 300 MB or more; normal random numbers. Medians over \
{turns} turns, in each of which a graph of launches is replayed for {seconds:.3f} s, after 0.4 of \
that untimed. In brackets the time of _scaled_mm, fast, divided by ours; the marks are 1 without \
an activation, and 1 / 1.1 with GELU."""


def random_float8(rows: int, columns: int) -> Any:
    values = torch.randn(rows, columns, device="cuda") * UNIT
    return values.clamp(-448, 448).to(torch.float8_e4m3fn)


class Shape:
    """The buffers of one shape, and its launches."""

    def __init__(self, library: Library, rows: int, n: int, k: int) -> None:
        self.library = library
        self.flop = 2 * rows * n * k
        copies = copies_of((rows + n) * k)
        self.a = [random_float8(rows, k) for _ in range(copies)]
        self.weights = [random_float8(n, k) for _ in range(copies)]
        half: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
        halves = copies_of(2 * (rows + n) * k)
        self.a16 = [torch.randn(rows, k, **half) for _ in range(halves)]
        self.weights16 = [torch.randn(n, k, **half) * k**-0.5 for _ in range(halves)]
        self.row_scales = (torch.rand(rows, 1, device="cuda") + 0.5) / UNIT
        self.column_scales = (torch.rand(1, n, device="cuda") + 0.5) / (UNIT * k**0.5)
        self.bias = torch.randn(n, device="cuda")
        self.bias16 = self.bias.half()
        self.out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
        self.out8 = torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn)
        self.out16 = torch.empty(rows, n, **half)

    def ours(self, way: str, i: int) -> Any:
        options: dict[str, Any] = {"bias": self.bias, "gelu": way.startswith("GELU")}
        options |= {"row_scales": self.row_scales, "column_scales": self.column_scales}
        out = self.out if way == "16 bits" else self.out8
        if out is self.out8:
            options["out_factor"] = OUT_FACTOR
        i %= len(self.a)
        self.library.run(product(self.a[i], self.weights[i], out, **options))
        return out

    def peer(self, way: str, i: int) -> Any:
        i %= len(self.a)
        return torch._scaled_mm(
            self.a[i],
            self.weights[i].t(),
            scale_a=self.row_scales,
            scale_b=self.column_scales,
            out_dtype=torch.bfloat16,
            use_fast_accum=way == FAST,
        )

    def has_peer(self, way: str) -> bool:
        """True if this version of PyTorch has a kernel for that."""
        try:
            self.peer(way, 0)
        except RuntimeError as error:
            print(f"\n{way}: {error}\n")
            return False
        return True

    def half(self, i: int) -> Any:
        i %= len(self.a16)
        return torch.addmm(self.bias16, self.a16[i], self.weights16[i].t(), out=self.out16)

    def ways(self) -> dict[str, Callable[[int], Any]]:
        ours = {way: partial(self.ours, way) for way in OURS}
        peers = {way: partial(self.peer, way) for way in (FAST, PRECISE) if self.has_peer(way)}
        return {**ours, **peers, HALF: self.half}

    def check(self) -> dict[str, float]:
        """Returns the error of the first rows by each way, relative to the norm of the results."""
        plain = self.a[0][:CHECKED_ROWS].double() @ self.weights[0].double().t()
        plain = plain * self.row_scales[:CHECKED_ROWS] * self.column_scales
        errors = {}
        for way, launch in self.ways().items():
            if way not in MOST_ERROR:
                continue
            found = launch(0)[:CHECKED_ROWS].double()
            found = found / OUT_FACTOR if "e4m3" in way else found
            expected = plain + self.bias if way in OURS else plain
            if way.startswith("GELU"):
                expected = torch.nn.functional.gelu(expected)
            errors[way] = ((found - expected).norm() / expected.norm()).item()
        return errors

    def measure(self, seconds: float) -> dict[str, float]:
        """Returns the microseconds of each way."""
        microseconds = self.flop / 1e9  # at a petaflop a second
        launches = launches_of(len(self.a), max(4, round(1000 / microseconds)))
        graphs = {way: capture(launch, launches) for way, launch in self.ways().items()}
        return {way: us / launches for way, us in sustained(graphs, TURNS, seconds).items()}


def measure_float8(
    library: Library, seconds: float, turn_seconds: float, done: Callable[[dict[str, Any]], None]
) -> None:
    """Prints a line for each shape, and gives it to `done`; shapes that are not begun after
    `seconds` are left out."""
    print(f"## e4m3\n\n{METHOD.format(turns=TURNS, seconds=turn_seconds)}\n")
    print(table_head(["rows x n x k", *OURS, FAST, PRECISE, HALF]))
    begin = time.monotonic()
    met = dict.fromkeys(OURS, 0)
    count = 0
    for rows, n, k in SHAPES:
        if time.monotonic() - begin > seconds:
            print(f"\nOut of time: {len(SHAPES) - count} shapes are left out.")
            break
        shape = Shape(library, rows, n, k)
        errors = shape.check()
        wrong = [way for way, error in errors.items() if not error <= MOST_ERROR[way]]
        times = shape.measure(turn_seconds)
        done({"rows": rows, "n": n, "k": k, "us": times, "errors": errors, "wrong": wrong})
        cells = [f"{rows} x {n} x {k}"]
        for way in (*OURS, FAST, PRECISE, HALF):
            us = times.get(way, math.nan)
            cells.append(f"{shape.flop / us / 1e6:.0f}")
            if way in OURS:
                ratio = times.get(FAST, math.nan) / us
                met[way] += ratio >= LEAST_RATIOS[way]
                verdict = "met" if ratio >= LEAST_RATIOS[way] else "missed"
                cells[-1] += f" ({ratio:.2f}) {verdict}"
        print(table_line(cells), flush=True)
        count += 1
        for way in wrong:
            print(f"\nWRONG: {way} is off by {errors[way]:.3g} of the norm\n", flush=True)
        del shape
        torch.cuda.empty_cache()
    verdicts = ", ".join(f"{way} {number}" for way, number in met.items())
    print(f"\nMarks met, of {count}: {verdicts}. {time.monotonic() - begin:.0f} s.\n", flush=True)
