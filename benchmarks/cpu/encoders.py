"""Times Packhorse and its peers on the CPU, side by side in one process, on real text.

    python benchmarks/cpu/encoders.py [--threads 2] [--models minilm] [--batch-sizes 1 32] ...

Every round times every engine once, one after the other, in an order that rotates, so that other
work of the machine affects all of them alike. Peers that are not installed are left out. Results go
to benchmarks/results/, and as Markdown to the screen; benchmarks/README.md says how to read them.
All cases take about a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import packhorse

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from avx2 import hold
from engines import Engine, FloatArray
from figures import COLOURS, DTYPES, PACKHORSE
from limits import measure_peaks, profile
from peers import VERSIONED, installed, make_engines
from report import markdown
from rich.progress import Progress
from sample import find_model
from texts import make_text_engines, measure_texts
from timing import CLOCKS, find_reference, interleave, min_cosine
from workloads import (
    BATCH_SIZES,
    BERT_BASE,
    MAX_LENGTHS,
    MODELS,
    Batch,
    Case,
    Sizes,
    make_batches,
    make_case,
    write_random_bert_base,
)

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "benchmarks"
# The processor features that decide which kernels run.
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


def compare(hidden: FloatArray, reference: FloatArray, batch: Batch) -> dict[str, float]:
    """Compares hidden and reference, both [T, hidden_size] of one batch. The cosines are those of
    the sequences' means."""
    ends = np.cumsum([len(row) for row in batch])[:-1]
    means = [
        np.stack([rows.mean(0) for rows in np.split(all_rows, ends)])
        for all_rows in (hidden, reference)
    ]
    return {
        "max_abs_error": float(np.abs(hidden - reference).max()),
        "min_cosine": min_cosine(*means),
    }


def measure(
    case: Case,
    folder: Path,
    engines: Sequence[Engine],
    arguments: argparse.Namespace,
    progress: Progress,
) -> tuple[dict[str, Any], str]:
    """Returns the case in the form of the result file, and the name of the reference."""
    batches = make_batches(case, folder)
    outputs = {
        engine: np.asarray(engine.hidden(engine.run(batches[0]), batches[0])) for engine in engines
    }
    reference = find_reference(engines)
    times = interleave(
        engines,
        batches,
        arguments.rounds,
        arguments.seconds,
        progress,
        case.name,
        arguments.clock,
    )
    lengths = [[len(row) for row in batch] for batch in batches]
    return {
        "name": case.name,
        "model": case.model,
        "batch_size": case.batch_size,
        "max_length": case.max_length,
        "sequences": sum(map(len, lengths)),
        "tokens": sum(map(sum, lengths)),
        "padded_tokens": sum(len(one) * max(one) for one in lengths),
        "flop_per_token": Sizes.read(folder).flop_per_token,
        "engines": [
            {
                "name": engine.name,
                "dtype": engine.dtype,
                **compare(outputs[engine], outputs[reference], batches[0]),
                "seconds": seconds,
            }
            for engine, seconds in zip(engines, times, strict=True)
        ],
        "profiles": {
            engine.dtype: profile(engine, batches, arguments.threads)
            for engine in engines
            if engine.name == PACKHORSE
        },
    }, f"{reference.name} {reference.dtype}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads of every engine")
    parser.add_argument("--rounds", type=int, default=3, help="at least so many")
    parser.add_argument(
        "--seconds", type=float, default=10, help="length of a case: rounds go on so long"
    )
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="cpu: the processor's time of all threads, for busy machines and one thread",
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--texts", type=int, default=600, metavar="N", help="to embed; 0: none")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=BATCH_SIZES, metavar="N")
    parser.add_argument("--max-lengths", nargs="+", type=int, default=MAX_LENGTHS, metavar="N")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument(
        "--engines", nargs="+", choices=list(COLOURS), help="Packhorse and these alone"
    )
    parser.add_argument("--avx2", action="store_true", help="every engine held to AVX2")
    arguments = parser.parse_args()
    if arguments.texts < 0 or not (arguments.models or arguments.texts):
        parser.error("nothing to measure: name a model, or at least one text")
    return arguments


def run_model(
    model: str, arguments: argparse.Namespace, progress: Progress, left_out: dict[str, str]
) -> Iterator[tuple[dict[str, Any], str]]:
    folder = find_model()
    if model == BERT_BASE:
        tokenizer, folder = folder, CACHE / "bert-base"
        if not (folder / "config.json").is_file():
            write_random_bert_base(folder, tokenizer)
    task = progress.add_task(f"Preparing {model}", total=None)
    engines, reasons = make_engines(folder, CACHE / f"{folder.name}-exports", arguments.threads)
    left_out |= reasons
    for name, reason in reasons.items():
        progress.console.print(f"{name} left out: {reason}", markup=False)
    progress.remove_task(task)
    if not any(engine.name == PACKHORSE for engine in engines):
        raise SystemExit("Packhorse itself cannot run")
    wanted = arguments.engines and {PACKHORSE, *arguments.engines}
    engines = [
        engine
        for engine in engines
        if engine.dtype in arguments.dtypes and (not wanted or engine.name in wanted)
    ]
    if not engines:
        raise SystemExit(f"{model}: nothing here computes in {' or '.join(arguments.dtypes)}")
    for batch_size in arguments.batch_sizes:
        for max_length in arguments.max_lengths:
            case = make_case(model, batch_size, max_length)
            yield measure(case, folder, engines, arguments, progress)


def run_texts(
    arguments: argparse.Namespace, progress: Progress, left_out: dict[str, str]
) -> dict[str, Any]:
    folder = find_model()
    engines, reasons = make_text_engines(folder, CACHE, arguments.threads)
    left_out |= reasons
    engines = [engine for engine in engines if engine.dtype in arguments.dtypes]
    return measure_texts(
        folder,
        engines,
        arguments.texts,
        arguments.rounds,
        arguments.seconds,
        progress,
        arguments.clock,
    )


def main() -> None:
    arguments = parse_arguments()
    if arguments.avx2:
        hold()
    machine = describe_machine()
    if arguments.avx2:
        machine["isa"] = ["avx2"]
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    result: dict[str, Any] = {
        "date": date,
        "machine": machine,
        "threads": arguments.threads,
        "clock": arguments.clock,
        "versions": {"packhorse": packhorse.__version__} | installed(VERSIONED),
        "left_out": {},
        "cases": [],
    }
    name = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    kind = "cpu" if arguments.models else f"cpu-texts-{arguments.threads}-threads"
    kind += "-avx2" if arguments.avx2 else ""
    path = HERE.parent / "results" / f"{kind}_{name}_{machine['cores']}-cores_{date}.json"
    path.parent.mkdir(exist_ok=True)
    start = time.perf_counter()
    with Progress(transient=True) as progress:
        if arguments.texts:
            result["texts"] = run_texts(arguments, progress, result["left_out"])
        if arguments.models:
            result["peaks"] = measure_peaks(arguments.threads, arguments.dtypes)
        for model in arguments.models:
            for case, reference in run_model(
                MODELS[model], arguments, progress, result["left_out"]
            ):
                result["reference"] = reference
                result["cases"].append(case)
                # The file is written after every case, so that a long run that is interrupted is
                # not lost.
                path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                progress.console.print(f"{time.perf_counter() - start:4.0f} s  {case['name']}")
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(markdown(result))
    print(f"\nWritten to {path}")


if __name__ == "__main__":
    main()
