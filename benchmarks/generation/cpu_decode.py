"""Generation on a CPU beside other engines: prefill of 512 tokens, decode at batch 1 and 8.

    python benchmarks/generation/cpu_decode_models.py MODEL.gguf FOLDER  # the model in their forms
    python benchmarks/generation/cpu_decode.py MODEL.gguf FOLDER
        --python llama.cpp=/a/venv/bin/python ...

Every engine is a process of its own, of the Python that --python names for it (otherwise the one
that runs this), and has its model loaded while the others have their turns. Only one computes at a
time: the rest wait for their input. A round takes a figure of each, in an order that turns from
round to round; reported are medians over the rounds, and ratios as medians of the ratios within
each round.
Token ids are random, the most probable token is taken, and nothing ends a text early. Decode is
timed from the first new token of all texts to the last, after prompts of 64 tokens.
Engines that cannot be loaded are left out, and why is printed. With --clock cpu a figure counts the
processor's time of all threads of its engine, which other programs change little: for one thread,
since waiting threads of some engines compute, and not for OpenVINO, which has a clock of its own.
--avx2 holds all of them to AVX2;
llama.cpp, whose instructions are those of its build, must be built for it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
import cpu_decode_engines
from avx2 import environment as avx2_environment
from cpu_decode_engines import ENGINES, load_engine

CASES = {"prefill": (1, 512, 1), "decode 1": (1, 64, 49), "decode 8": (8, 64, 33)}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PAUSE = 0.05  # seconds between turns, after which threads no longer spin


def work(name: str, model: str, folder: str, threads: int, clock: str) -> None:
    """A worker: loads an engine, then takes a case per line and prints its tokens per second."""
    cpu_decode_engines.clock = CLOCKS[clock]
    try:
        run = load_engine(name, model, folder, threads)
        run(1, 16, 4)
    except Exception as error:  # whatever keeps an engine from running is reported, not raised
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        batch, prompt, new = CASES[line.strip()]
        times = run(batch, prompt, new)
        prefill = batch * prompt / times[0]
        rate = prefill if new == 1 else batch * (new - 1) / (times[1] - times[0])
        print(json.dumps({"rate": rate}), flush=True)


class Worker:
    def __init__(self, name: str, python: str, arguments: argparse.Namespace) -> None:
        self.name = name
        threads = str(arguments.threads)
        environment = dict(os.environ, OMP_NUM_THREADS=threads, HF_HUB_OFFLINE="1")
        if arguments.avx2:
            environment |= avx2_environment()
        if name.split()[0] != "Packhorse":
            environment.pop("PYTHONPATH", None)
        command = [python, __file__, arguments.model, arguments.folder, "--threads", threads]
        command += ["--clock", arguments.clock]
        self.process = subprocess.Popen(
            [*command, "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def read(self) -> dict[str, Any]:
        """The next answer. Lines that a library prints are passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        return {"error": f"the process ended with {self.process.wait()}"}

    def rate(self, case: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        answer = self.read()
        return float(answer["rate"]) if "rate" in answer else float("nan")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def start(arguments: argparse.Namespace) -> list[Worker]:
    pythons = dict(one.split("=", 1) for one in arguments.python)
    workers = []
    for name in arguments.engines:
        worker = Worker(name, pythons.get(name.split()[0], sys.executable), arguments)
        answer = worker.read()
        if "error" in answer:
            print(f"{name}: left out: {answer['error']}")
            continue
        workers.append(worker)
    return workers


def measure(workers: list[Worker], rounds: int) -> dict[str, dict[str, list[float]]]:
    rates: dict[str, dict[str, list[float]]] = {w.name: {c: [] for c in CASES} for w in workers}
    for round_ in range(rounds):
        for case in CASES:
            for step in range(len(workers)):
                worker = workers[(round_ + step) % len(workers)]
                time.sleep(PAUSE)
                rates[worker.name][case].append(worker.rate(case))
    return rates


def table(rates: dict[str, dict[str, list[float]]], dtype_of: dict[str, str]) -> str:
    """Medians; in brackets how many times faster Packhorse is in the dtype of that row."""
    lines = ["| tokens/s | " + " | ".join(CASES) + " |", "|---|" + "---:|" * len(CASES)]
    for name, cases in rates.items():
        ours = rates.get(f"Packhorse {dtype_of[name]}")
        cells = []
        for case, values in cases.items():
            cell = f"{statistics.median(values):,.0f}"
            if ours is not None and not name.startswith("Packhorse"):
                ratios = [a / b for a, b in zip(ours[case], values, strict=True)]
                cell += f" ({statistics.median(ratios):.2f})"
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="the GGUF file")
    parser.add_argument("folder", help="the folder that cpu_decode_models.py wrote")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--output", type=Path, help="a JSON file of all rates")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(
            arguments.worker, arguments.model, arguments.folder, arguments.threads, arguments.clock
        )
        return
    workers = start(arguments)
    rates = measure(workers, arguments.rounds)
    for worker in workers:
        worker.close()
    print(table(rates, {name: engine.dtype for name, engine in ENGINES.items()}))
    if arguments.output:
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": platform.processor() or platform.machine(),
            "isa": "AVX2" if arguments.avx2 else "the processor's",
            "threads": arguments.threads,
            "clock": arguments.clock,
            "load_average": os.getloadavg(),
            "tokens_per_second": rates,
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
