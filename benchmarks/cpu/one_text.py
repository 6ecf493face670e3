"""Times one text at a time in float32 on the CPU, beside onnxruntime and OpenVINO.

    python benchmarks/cpu/one_text.py [--threads 2] [--lengths 16 64 256] [--seconds 40]

Texts have given numbers of tokens. The model has the sizes of BERT-base and random weights, of
which a run reads 340 MB. All engines live in one process and take turns: at each length, in an
order that rotates, each runs some texts, and again until the time is over. Written to
benchmarks/results/ and to the screen, in Markdown: milliseconds of a text (the quantiles of 5 % and
20 %, and the median; on a machine that others use, the lower ones say more), the rate at which
Packhorse's products compute and at which it reads weights, and how many times faster Packhorse is
(the median over rounds of the ratio of the fastest texts).
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from encoders import CACHE, HERE, describe_machine
from engines import Engine, packhorse_engines
from figures import PACKHORSE
from limits import measure_peaks, profile
from onnx_peers import onnxruntime_engines, openvino_engines
from peers import collect_engines
from sample import find_model
from timing import PAUSE
from workloads import BERT_BASE, Sizes, write_random_bert_base

LENGTHS = (8, 16, 32, 64, 128, 256, 384, 512)
MAKERS = (
    (packhorse_engines, ()),
    (onnxruntime_engines, ("onnxruntime", "onnx", "torch", "transformers")),
    (openvino_engines, ("openvino", "torch", "transformers")),
)
QUANTILES = (0.05, 0.2, 0.5)
TOKENS_OF_A_TURN = 200  # at least two texts


def take_turns(
    engines: list[Engine], lengths: list[int], seconds: float
) -> dict[int, list[list[list[float]]]]:
    """The seconds of every text: [length][engine][round][text]."""
    random = np.random.default_rng(0)
    texts = {length: [random.integers(1000, 30000, length).tolist()] for length in lengths}
    times: dict[int, list[list[list[float]]]] = {n: [[] for _ in engines] for n in lengths}
    begin = time.perf_counter()
    round_ = 0
    while round_ < 2 or time.perf_counter() - begin < seconds:
        for length, text in texts.items():
            for step in range(len(engines)):
                i = (round_ + step) % len(engines)
                time.sleep(PAUSE)
                engines[i].run([text[0][:16]])
                turn = []
                for _ in range(max(2, TOKENS_OF_A_TURN // length)):
                    start = time.perf_counter()
                    engines[i].run(text)
                    turn.append(time.perf_counter() - start)
                times[length][i].append(turn)
        round_ += 1
    return times


def figures_of(
    times: list[list[list[float]]], engines: list[Engine], length: int, sizes: Sizes, threads: int
) -> dict[str, Any]:
    weights = 4 * sum(rows * columns for rows, columns in sizes.linear_layers) * sizes.num_layers
    text = np.random.default_rng(1).integers(1000, 30000, length).tolist()
    parts = profile(engines[0], [[text]], threads)
    own = [min(turn) for turn in times[0]]
    result: dict[str, Any] = {
        "tokens": length,
        "product_flop_per_second": length * sizes.flop_per_token / parts["product"],
        "profile": parts,
        "engines": [],
    }
    for engine, turns in zip(engines, times, strict=True):
        seconds = np.concatenate(turns)
        ratios = [min(turn) / ours for turn, ours in zip(turns, own, strict=True)]
        result["engines"].append(
            {
                "name": engine.name,
                "quantiles": [float(np.quantile(seconds, q)) for q in QUANTILES],
                "times_of_packhorse": statistics.median(ratios),
                "texts": len(seconds),
                "rounds": len(turns),
            }
        )
    result["bytes_per_second"] = weights / result["engines"][0]["quantiles"][1]
    return result


def markdown(result: dict[str, Any]) -> str:
    names = [engine["name"] for engine in result["cases"][0]["engines"]]
    lines = [
        f"| tokens | {' | '.join(names)} | GFLOP/s of products | GB/s of weights |",
        f"|---:|{'---:|' * (len(names) + 2)}",
    ]
    for case in result["cases"]:
        cells = []
        for engine in case["engines"]:
            times = " / ".join(f"{1e3 * seconds:.1f}" for seconds in engine["quantiles"])
            ratio = engine["times_of_packhorse"]
            cells.append(times if engine["name"] == PACKHORSE else f"{times} ({ratio:.2f})")
        rates = [case["product_flop_per_second"], case["bytes_per_second"]]
        cells += [f"{rates[0] / 1e9:.0f}", f"{rates[1] / 1e9:.1f}"]
        lines.append(f"| {case['tokens']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads of every engine")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), metavar="N")
    parser.add_argument("--seconds", type=float, default=40, help="time for all lengths together")
    arguments = parser.parse_args()
    folder = CACHE / "bert-base"
    if not (folder / "config.json").is_file():
        write_random_bert_base(folder, find_model())
    made, left_out = collect_engines(MAKERS, folder, CACHE / "bert-base-exports", arguments.threads)
    engines = [engine for engine in made if engine.dtype == "float32"]
    machine = describe_machine()
    times = take_turns(engines, arguments.lengths, arguments.seconds)
    sizes = Sizes.read(folder)
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine,
        "model": BERT_BASE,
        "threads": arguments.threads,
        "left_out": left_out,
        "product_peak": measure_peaks(arguments.threads)["float32"],
        "cases": [
            figures_of(times[length], engines, length, sizes, arguments.threads)
            for length in arguments.lengths
        ],
    }
    name = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    file = f"cpu_one_text_{arguments.threads}-threads_{name}_{result['date']}.json"
    path = HERE.parent / "results" / file
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(markdown(result))
    print(f"\nFastest large product: {result['product_peak'] / 1e9:.0f} GFLOP/s. Written to {path}")


if __name__ == "__main__":
    main()
