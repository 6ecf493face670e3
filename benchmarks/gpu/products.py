"""Times products of few rows and of e4m3 matrices on a Hopper GPU, beside PyTorch's.

    python benchmarks/gpu/products.py --cutlass DIR [--only rows float8 error] [--out FILE.json]
    python benchmarks/gpu/products.py --library FILE.so [...]

The first command compiles the kernels of this tree into build/products/ by nvcc; DIR holds the
headers of CUTLASS. The second takes a library that was compiled before. There are three parts:

- rows: dense layers of few rows in bfloat16, as a step of generation has them, whose sums are
  formed in one part and in several, beside the time that the weight takes to be read;
- float8: products of e4m3 matrices, as encoders have them, beside torch._scaled_mm;
- error: how far sums of such products are from float64.

Prints Markdown. FILE.json is written anew after every line, so that it has what was measured when a
run is cut off. How times are measured stands above each table. All launches of ours are those of
the runtime: each may set itself up while the one before it still runs (cuda/common/launch.cuh).
Ends with status 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from products_error import measure_error
from products_float8 import measure_float8
from products_library import Library, build
from products_rows import ROWS, measure_rows
from products_timing import copy_rate

PARTS = ("rows", "float8", "error")


def machine() -> dict[str, Any]:
    """The machine and the versions of its software, for the report."""
    properties = torch.cuda.get_device_properties(0)
    found = {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "CUDA of torch": str(torch.version.cuda),
    }
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        found["driver"] = answer.strip()
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, metavar="FILE", help="compiled before")
    parser.add_argument("--cutlass", type=Path, metavar="DIR", help="CUTLASS's headers")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a result file (JSON)")
    parser.add_argument("--rows", nargs="+", type=int, choices=ROWS, default=ROWS)
    parser.add_argument("--rows-seconds", type=float, default=70.0, help="limit of part `rows`")
    parser.add_argument("--float8-seconds", type=float, default=37.0, help="time for part `float8`")
    parser.add_argument("--error-seconds", type=float, default=12.0, help="time for part `error`")
    parser.add_argument("--turn-seconds", type=float, default=0.07, help="one turn of `float8`")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if (args.library is None) == (args.cutlass is None):
        sys.exit("one of --library and --cutlass is needed")
    library = Library(args.library if args.cutlass is None else build(args.cutlass))
    torch.manual_seed(1)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    result: dict[str, Any] = {"date": date, "machine": machine(), "command": sys.argv[1:]}
    copied_per_us = copy_rate()
    result["copy_tb_per_s"] = copied_per_us / 1e6
    names = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    print(f"{names}; {date}; a copy of 1 GiB moves {copied_per_us / 1e6:.3f} TB/s.\n", flush=True)

    def keep(part: str) -> Callable[[dict[str, Any]], None]:
        lines = result.setdefault(part, [])

        def done(line: dict[str, Any]) -> None:
            lines.append(line)
            if args.out is not None:
                args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

        return done

    if "rows" in args.only:
        measure_rows(library, args.rows, copied_per_us, args.rows_seconds, keep("rows"))
    if "float8" in args.only:
        measure_float8(library, args.float8_seconds, args.turn_seconds, keep("float8"))
    if "error" in args.only:
        measure_error(library, args.error_seconds, keep("error"))
    if any(line.get("wrong") for part in PARTS for line in result.get(part, [])):
        sys.exit("Some results were wrong.")


if __name__ == "__main__":
    main()
