"""Times Packhorse and its peers on the CPU, side by side in one process, on real text.

    python benchmarks/cpu.py [--threads 2] [--rounds 5]

Every round times every engine once, one after the other, in an order that turns, so that whatever
else the machine does meets all of them. Peers that are not installed are left out. Results go to
benchmarks/results/, and as Markdown to the screen; benchmarks/README.md says how to read them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
from cases import BERT_BASE, CASES, MINILM, Batch, Case, Sizes, make_batches, write_random_bert_base
from engines import PACKHORSE, Engine, FloatArray
from peers import VERSIONED, installed, make_engines
from report import markdown
from rich.progress import Progress
from sample import find_model

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / "build" / "benchmarks"
PAUSE = 0.02  # seconds: threads that spin on after a run have stopped by then
# What decides which kernels run.
ISA = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def describe_machine() -> dict[str, Any]:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    processor = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split() if flags else ())
    return {
        "processor": processor[1] if processor else "unknown processor",
        "cores": len(os.sched_getaffinity(0)),
        "isa": [name for name in ISA if name in present],
        "load_average": os.getloadavg()[0],
    }


def interleave(
    engines: Sequence[Engine], batches: Sequence[Batch], rounds: int, progress: Progress, name: str
) -> list[list[float]]:
    """Seconds of one pass over the batches: [engine][round]."""
    seconds: list[list[float]] = [[] for _ in engines]
    task = progress.add_task(name, total=rounds * len(engines))
    for round_ in range(rounds):
        for step in range(len(engines)):
            i = (round_ + step) % len(engines)
            time.sleep(PAUSE)
            engines[i].run(batches[0])  # its weights and code come back into the caches
            start = time.perf_counter()
            for batch in batches:
                engines[i].run(batch)
            seconds[i].append(time.perf_counter() - start)
            progress.advance(task)
    return seconds


def compare(hidden: FloatArray, reference: FloatArray, batch: Batch) -> dict[str, float]:
    """hidden and reference [T, hidden_size] of one batch."""
    ends = np.cumsum([len(row) for row in batch])[:-1]
    means = [
        np.stack([rows.mean(0) for rows in np.split(all_rows, ends)])
        for all_rows in (hidden, reference)
    ]
    ours, theirs = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in means)
    return {
        "max_abs_error": float(np.abs(hidden - reference).max()),
        "min_cosine": float((ours * theirs).sum(1).min()),
    }


def measure(
    case: Case, folder: Path, engines: Sequence[Engine], rounds: int, progress: Progress
) -> tuple[dict[str, Any], str]:
    """The case as it goes into the result file, and the name of the reference."""
    batches = make_batches(case, folder)
    outputs = {
        engine: np.asarray(engine.hidden(engine.run(batches[0]), batches[0]))
        for engine in engines
        if engine.hidden
    }
    # PyTorch in float32 where it is installed, Packhorse in float32 otherwise.
    exact = [engine for engine in outputs if engine.dtype == "float32"]
    reference = next((one for one in exact if one.name == "PyTorch"), exact[0])
    seconds = interleave(engines, batches, rounds, progress, case.name)
    lengths = [[len(row) for row in batch] for batch in batches]
    result: dict[str, Any] = {
        "name": case.name,
        "sequences": sum(map(len, lengths)),
        "tokens": sum(map(sum, lengths)),
        "padded_tokens": sum(len(one) * max(one) for one in lengths),
        "flop_per_token": Sizes.read(folder).flop_per_token,
        "engines": [],
    }
    for engine, times in zip(engines, seconds, strict=True):
        entry = {"name": engine.name, "dtype": engine.dtype, "is_encoder": engine in outputs}
        if engine in outputs:
            entry |= compare(outputs[engine], outputs[reference], batches[0])
        result["engines"].append(entry | {"seconds": times})
    return result, f"{reference.name} {reference.dtype}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    machine = describe_machine()
    minilm, bert_base = find_model(), CACHE / "bert-base"
    if not (bert_base / "config.json").is_file():
        write_random_bert_base(bert_base, minilm)
    cases: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    with Progress(transient=True) as progress:
        for model, folder in ((MINILM, minilm), (BERT_BASE, bert_base)):
            task = progress.add_task(f"Preparing {model}", total=None)
            exports = CACHE / f"{folder.name}-exports"
            engines, reasons = make_engines(folder, exports, arguments.threads)
            left_out |= reasons
            for name, reason in reasons.items():
                progress.console.print(f"{name} left out: {reason}", markup=False)
            progress.remove_task(task)
            if not any(engine.name == PACKHORSE for engine in engines):
                raise SystemExit("Packhorse itself cannot run")
            for case in CASES:
                if case.model == model:
                    one, reference = measure(case, folder, engines, arguments.rounds, progress)
                    cases.append(one)

    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    result = {
        "date": date,
        "machine": machine,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "versions": {"packhorse": packhorse.__version__} | installed(VERSIONED),
        "reference": reference,
        "left_out": left_out,
        "cases": cases,
    }
    name = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    path = HERE / "results" / f"cpu_{name}_{machine['cores']}-cores_{date}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(markdown(result))
    print(f"\nWritten to {path}")


if __name__ == "__main__":
    main()
