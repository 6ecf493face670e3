"""Runs NVIDIA's compute-sanitizer over named sets of GPU tests, and prints a table of what it said.

    python tools/sanitize_kernels.py                        memcheck over every set
    python tools/sanitize_kernels.py float8 --tool racecheck --tool synccheck
    python tools/sanitize_kernels.py int8 -k sums --limit 600
    python tools/sanitize_kernels.py --list

A set is a file of tests and an expression that chooses small ones of them: a sanitizer makes
kernels ten to a thousand times slower. Each tool has a process of its own for each set, and a time
limit. What it printed lies in a file that the table names. Exits with 1 if anything was reported,
if a test failed or if a limit was exceeded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 86  # compute-sanitizer's exit code where it has reported something


@dataclass(frozen=True)
class Set:
    tests: str  # a file, relative to the root
    chosen: str  # pytest's -k


SETS = {
    "float8": Set(
        "tests/gpu/test_gpu_float8.py", "dense_layers or feed_forward or norm or rotated or row"
    ),
    "compressed": Set("tests/gpu/test_gpu_compressed_attention.py", "many_rows"),
    "pages": Set("tests/python/ops/test_pages.py", "cuda and not head_sizes"),
    "float8-cache": Set("tests/gpu/test_gpu_float8_cache.py", "cpu or leak or (bits and 72)"),
    "attention": Set("tests/gpu/test_gpu_attention.py", "auto and 64 and batches"),
    "short-texts": Set("tests/gpu/test_gpu_short_texts.py", "length or nothing or windows or term"),
    "groups": Set("tests/gpu/test_gpu_groups.py", "test_gate or test_activations or test_values"),
    "few-rows": Set("tests/gpu/test_gpu_gemm_skinny.py", "test_parts"),
    "sampler": Set(
        "tests/python/ops/test_sampling_operator.py",
        "cuda and not transformers and not own and not errors",
    ),
    "mixture": Set("tests/python/generation/test_zaya.py", "cuda and (decode or beams)"),
    "int8": Set("tests/gpu/test_gpu_int8.py", "exact or largest or finite or feed_forward"),
}


@dataclass(frozen=True)
class Result:
    tests: str  # in pytest's words
    said: str
    seconds: float
    good: bool


def command(tool: str, tests: Set, more: str) -> list[str]:
    """The whole command line of one run."""
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    sanitizer += ["--print-limit", "50", "--target-processes", "application-only"]
    # Initcheck must see who writes what our kernels read: it gets no filter.
    if tool != "initcheck":
        sanitizer += ["--kernel-name", "kernel_substring=packhorse"]
    chosen = f"({tests.chosen}) and ({more})" if more else tests.chosen
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return [*sanitizer, *pytest, tests.tests, "-k", chosen]


def summary(output: str) -> str:
    """The sanitizer's own line with its count of errors."""
    found = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", output)
    return str(found[-1]).partition(": ")[2].strip() if found else "no summary"


def verdict(output: str, code: int) -> tuple[str, str, bool]:
    """The counts of pytest, the words of the sanitizer, and True if all is well."""
    ran = re.findall(r"^(\d+ (?:passed|failed|skipped|deselected|error)[^\n]*?) in ", output, re.M)
    tests = str(ran[-1]) if ran else "no tests ran"
    said = summary(output)
    silent = re.match(r"0 (errors|hazards)", said) is not None
    return tests, "silent" if silent else said, code == 0 and silent and "passed" in tests


def run(arguments: Sequence[str], limit: float, log: Path) -> Result:
    """Runs one command. Its processes are ended where it exceeds the limit."""
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            text = f"over its limit of {limit:.0f} s; until then {summary(log.read_text())}"
            return Result("cut off", text, time.monotonic() - start, False)
    tests, said, good = verdict(log.read_text(errors="replace"), code)
    return Result(tests, said, time.monotonic() - start, good)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help="default: all of --list")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="default: memcheck")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="fewer tests of the sets")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one run (900)")
    parser.add_argument("--logs", type=Path, help="folder of the tools' output")
    parser.add_argument("--list", action="store_true", help="print the sets")
    given = parser.parse_args(arguments)
    if given.list:
        for name, tests in SETS.items():
            print(f"{name}: {tests.tests} -k '{tests.chosen}'")
        return 0
    for name in given.sets:
        if name not in SETS:
            parser.error(f"no set is called {name!r}; expected some of {', '.join(SETS)}")
    if shutil.which("compute-sanitizer") is None:
        parser.error("compute-sanitizer is not on PATH: it comes with the CUDA toolkit")
    logs = given.logs or Path(tempfile.mkdtemp(prefix="sanitizers-"))
    logs.mkdir(parents=True, exist_ok=True)
    print(
        "| set | tool | tests | said | seconds | output |\n|---|---|---|---|---:|---|", flush=True
    )
    good = True
    for name in given.sets or SETS:
        for tool in dict.fromkeys(given.tool or ["memcheck"]):
            log = logs / f"{name}-{tool}.txt"
            result = run(command(tool, SETS[name], given.k), given.limit, log)
            good &= result.good
            cells = (name, tool, result.tests, result.said, f"{result.seconds:.0f}", str(log))
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
