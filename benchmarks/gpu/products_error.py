"""Errors of sums of e4m3 products against float64, beside those of torch._scaled_mm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from products_float8 import random_float8
from products_library import Library, product
from products_timing import table_head, table_line

LENGTHS = (768, 3072, 4096, 8192, 12288)  # summands of a sum
ROWS = COLUMNS = 1024
RESULT = 1024.0  # about the root mean square of results, so that float16 has digits for all of them

METHOD = f"""\
The kernels form a sum in the tensor cores' own precision (about 14 bits) from \
beginning to end: they never promote it to float32 within a tile. Relative to float64 of the same \
e4m3 numbers: the root of the mean square of errors / the largest error, both divided by the root \
of the mean square of exact results, of {ROWS} x {COLUMNS}. The sum itself is read as float16 and \
a second result in float16, which is what is left after the first is subtracted as a residual in \
float32. "float16" is the first alone, as a layer gives it. _scaled_mm gives float32 with one \
scale for all, with use_fast_accum=True ("fast") and without. Scales are powers of two, which are \
exact."""


def our_sums(library: Library, a: Any, weight: Any, factor: float) -> tuple[Any, Any]:
    """Returns the products in float64, as exactly as the tensor cores have them, and in float16;
    both times `factor`."""
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    rounded = torch.empty(len(a), len(weight), **half)
    rest = torch.empty_like(rounded)
    scales: dict[str, Any] = {
        "row_scales": torch.ones(len(a), device="cuda"),
        "column_scales": torch.full((len(weight),), factor, device="cuda"),
        "bfloat16": False,
    }
    torch.cuda.synchronize()  # the kernels read some of their inputs before they wait for others
    library.run(product(a, weight, rounded, **scales))
    subtracted = -rounded
    library.run(product(a, weight, rest, residual=subtracted, **scales))
    torch.cuda.synchronize()
    return rounded.double() + rest.double(), rounded.double()


def errors_of(library: Library, k: int, positive: bool) -> dict[str, list[float]]:
    """Returns two errors of each way to form sums: the root of the mean square, and the largest."""
    a, weight = random_float8(ROWS, k), random_float8(COLUMNS, k)
    if positive:
        a, weight = (x.float().abs().to(x.dtype) for x in (a, weight))
    exact = a.double() @ weight.double().t()
    norm = exact.square().mean().sqrt().item()
    factor = 2.0 ** round(math.log2(RESULT / norm))
    sums, rounded = our_sums(library, a, weight, factor)
    found = {"sum": sums / factor, "float16": rounded / factor}
    one = torch.ones((), device="cuda")
    for name, fast in (("_scaled_mm, fast", True), ("_scaled_mm", False)):
        found[name] = torch._scaled_mm(
            a,
            weight.t(),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.float32,
            use_fast_accum=fast,
        ).double()
    errors = {name: (value - exact) / norm for name, value in found.items()}
    return {
        name: [error.square().mean().sqrt().item(), error.abs().max().item()]
        for name, error in errors.items()
    }


def measure_error(library: Library, seconds: float, done: Callable[[dict[str, Any]], None]) -> None:
    """Prints a line for each length and kind of numbers, and gives it to `done`; whatever is not
    begun after `seconds` is left out."""
    print(f"## Error of e4m3 sums\n\n{METHOD}\n")
    print(table_head(["numbers, k", "sum", "float16", "_scaled_mm, fast", "_scaled_mm"]))
    begin = time.monotonic()
    for positive in (False, True):
        for k in LENGTHS:
            if time.monotonic() - begin > seconds:
                print("\nOut of time: the rest is left out.")
                return
            errors = errors_of(library, k, positive)
            numbers = "positive" if positive else "both signs"
            done({"k": k, "numbers": numbers, "errors": errors})
            cells = [f"{mean:.2e} / {most:.2e}" for mean, most in errors.values()]
            print(table_line([f"{numbers}, {k}", *cells]), flush=True)
    print(f"\n{time.monotonic() - begin:.0f} s.\n", flush=True)
