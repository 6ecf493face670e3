"""Translation models on the CPU beside CTranslate2: one batch of 32 sources of mixed lengths.

    python benchmarks/generation/cpu_translation_models.py opus-mt FOLDER
    python benchmarks/generation/cpu_translation.py FOLDER --python CTranslate2=/a/venv/bin/python

Every engine is a process of its own, has its model loaded while the others have their turns, and
computes the same sources of 4 to 120 random tokens, greedily and with 4 beams. Every translation
has exactly --new tokens. CTranslate2 sorts the batch by length and cuts it by tokens; of its batch
sizes and ways to spend threads the best of a first round counts, or that of --way. Figures are new
tokens of results a second, medians over the rounds, and ratios medians of the ratios within each
round. --alone translates the first 4 sources one after the other. --avx2 holds both engines to
AVX2.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from avx2 import environment as avx2_environment

DTYPES = ("float32", "int8", "bfloat16")
BEAMS = (1, 4)
PAUSE = 0.05  # seconds between turns, after which threads no longer spin
BATCH_TOKENS = (512, 1024, 2048, 4096)

ALONE = 4  # sources of --alone

Run = Callable[[int], int]  # beams -> new tokens of the results
Batches = list[list[list[int]]]


def sources() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [[int(i) for i in rng.integers(100, 60000, n)] for n in rng.integers(4, 121, 32)]


def batches(alone: bool) -> Batches:
    return [[one] for one in sources()[:ALONE]] if alone else [sources()]


def load_packhorse(arguments: argparse.Namespace, dtype: str) -> Run:
    import packhorse

    folder = arguments.folder

    session = packhorse.Session.load(
        folder / "hf",
        dtype=dtype,
        threads=arguments.threads,
        kv_tokens=32768,
        max_sequences=128,
        prefix_cache=False,
    )
    start = json.loads((folder / "hf" / "config.json").read_text())["decoder_start_token_id"]
    all_batches = batches(arguments.alone)

    def run(beams: int) -> int:
        sampling = packhorse.Sampling(
            max_new_tokens=arguments.new, num_beams=beams, ignore_eos=True
        )
        results = [
            result
            for batch in all_batches
            for result in session.generate([[start]] * len(batch), sampling, sources=batch)
        ]
        return sum(len(result.ids) for result in results)

    return run


def load_ctranslate2(arguments: argparse.Namespace, dtype: str) -> Run:
    import ctranslate2

    threads, new = arguments.threads, arguments.new
    asked = arguments.way or [None, None]
    ways = []
    # One source at a time has nothing to spread over several translators, or to cut.
    for inter in {asked[0]} if asked[0] else {1} if arguments.alone else {1, threads}:
        translator = ctranslate2.Translator(
            str(arguments.folder / f"ct2-{dtype}"),
            compute_type=dtype,
            inter_threads=inter,
            intra_threads=threads // inter,
        )
        sizes = (asked[1],) if asked[1] else BATCH_TOKENS[:1] if arguments.alone else BATCH_TOKENS
        ways += [(translator, tokens) for tokens in sizes]
    all_batches = [
        [[str(i) for i in source] for source in batch] for batch in batches(arguments.alone)
    ]

    def translate(translator: Any, tokens: int, beams: int) -> int:
        results = [
            result
            for batch in all_batches
            for result in translator.translate_batch(
                batch,
                beam_size=beams,
                max_batch_size=tokens,
                batch_type="tokens",
                min_decoding_length=new,
                max_decoding_length=new,
            )
        ]
        return sum(len(result.hypotheses[0]) for result in results)

    best: dict[int, tuple[float, Any, int]] = {}

    def run(beams: int) -> int:
        if beams not in best and len(ways) == 1:
            best[beams] = 0.0, *ways[0]
        elif beams not in best:
            for translator, tokens in ways:
                begin = time.perf_counter()
                translate(translator, tokens, beams)
                seconds = time.perf_counter() - begin
                if beams not in best or seconds < best[beams][0]:
                    best[beams] = seconds, translator, tokens
            _, translator, tokens = best[beams]
            way = f"inter_threads={translator.num_translators}, max_batch_size={tokens}"
            print(f"CTranslate2 {dtype}, {beams} beams: {way}", file=sys.stderr)
        return translate(*best[beams][1:], beams)

    return run


LOADERS = {"Packhorse": load_packhorse, "CTranslate2": load_ctranslate2}


def work(name: str, arguments: argparse.Namespace) -> None:
    """A worker: loads an engine, then takes a number of beams per line and prints a rate."""
    engine, dtype = name.split()
    run = LOADERS[engine](arguments, dtype)
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        tokens = run(int(line))
        print(f"rate {tokens / (time.perf_counter() - begin)}", flush=True)


class Worker:
    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name = name
        threads = str(arguments.threads)
        environment = dict(os.environ, OMP_NUM_THREADS=threads)
        if arguments.avx2:
            environment |= avx2_environment()
        pythons = dict(one.split("=", 1) for one in arguments.python)
        command = [pythons.get(name.split()[0], sys.executable), __file__, str(arguments.folder)]
        command += ["--threads", threads, "--new", str(arguments.new), "--worker", name]
        command += ["--alone"] if arguments.alone else []
        command += ["--way", *map(str, arguments.way)] if arguments.way else []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("ready", "rate")):
                return line
        raise SystemExit(f"{self.name}: the process ended with {self.process.wait()}")

    def rate(self, beams: int) -> float:
        assert self.process.stdin is not None
        time.sleep(PAUSE)
        self.process.stdin.write(f"{beams}\n")
        self.process.stdin.flush()
        return float(self.read().split()[1])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    workers: list[Worker], beams: list[int], rounds: int
) -> dict[str, dict[int, list[float]]]:
    rates: dict[str, dict[int, list[float]]] = {w.name: {b: [] for b in beams} for w in workers}
    for round_ in range(-1, rounds):  # the first only warms up
        for number in beams:
            for step in range(len(workers)):
                worker = workers[(round_ + step) % len(workers)]
                rate = worker.rate(number)
                if round_ >= 0:
                    rates[worker.name][number].append(rate)
    return rates


def table(rates: dict[str, dict[int, list[float]]], beams: list[int]) -> str:
    """Medians; in brackets how many times faster Packhorse is in the same dtype."""
    lines = ["| tokens/s | " + " | ".join("greedy" if b == 1 else f"{b} beams" for b in beams)]
    lines = [lines[0] + " |", "|---|" + "---:|" * len(beams)]
    for name, cases in rates.items():
        engine, dtype = name.split()
        ours = rates.get(f"Packhorse {dtype}")
        cells = []
        for number in beams:
            cell = f"{statistics.median(cases[number]):,.0f}"
            if ours is not None and engine != "Packhorse":
                ratios = [a / b for a, b in zip(ours[number], cases[number], strict=True)]
                cell += f" ({statistics.median(ratios):.2f})"
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="what cpu_translation_models.py wrote")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--engines", nargs="+", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "int8"], choices=DTYPES)
    parser.add_argument("--beams", nargs="+", type=int, default=list(BEAMS))
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument(
        "--way",
        nargs=2,
        type=int,
        metavar=("TRANSLATORS", "TOKENS"),
        help="inter_threads and max_batch_size of CTranslate2, instead of the best",
    )
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--output", type=Path, help="a JSON file of all rates")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments)
        return
    names = [f"{engine} {dtype}" for dtype in arguments.dtypes for engine in arguments.engines]
    workers = [Worker(name, arguments) for name in names]
    rates = measure(workers, arguments.beams, arguments.rounds)
    for worker in workers:
        worker.close()
    print(table(rates, arguments.beams))
    if arguments.output:
        record = {"machine": platform.processor(), "arguments": sys.argv[1:], "rates": rates}
        arguments.output.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
