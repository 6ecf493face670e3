"""Sends hostile requests to `packhorse serve` for some minutes and watches what it keeps of them.

    python tests/soak_hostile.py [--minutes 5] [--seed 1]      (`nox -s soak-hostile`)

Two clients send requests of every route whose options no request had before, and now and then the
largest ones that there are (tests/python/support/hostile_requests.py). A third one leaves before
its answer comes. After each sixth of the time all rest for some seconds, and the server's process
is looked at. Prints a line of JSON each time, and one at the end. Exits with 1 where the process
was larger in the last two looks than in the two before by more than 8 MB (allocations of all sizes
leave gaps in its memory) or had more threads or descriptors, or where a request was answered with
an error of the server's own.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "python" / "support"))
from hostile_requests import Hostile, fresh_requests, hostile_requests, make_hostile_models
from serve_process import serving_process

LARGE = 300_000  # bytes of a large request, of which more are sent than of the largest
CYCLES = 6
CALM_S = 8.0  # until the server has given back what large requests have left
ALLOWED = {"resident_kb": 8192, "threads": 4, "descriptors": 4}  # more in the last third


class Soak:
    def __init__(self, port: int, process: int, seed: int) -> None:
        self.port, self.process = port, process
        self.numbers = itertools.count(seed * 1_000_000)
        self.end = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []

    def ask(self, one: Hostile, *, leave: bool = False) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", one.path, one.body())
            if leave:
                self.statuses[0] += 1
                return
            response = connection.getresponse()
            said = response.read()
            self.statuses[response.status] += 1
            if response.status == 500:
                self.wrong.append(f"{one.name}: {said[:200]!r}")
        except (ConnectionError, http.client.HTTPException):
            self.statuses[0] += 1  # refused before all of it was sent
        finally:
            connection.close()

    def fresh(self) -> None:
        while not self.end.is_set():
            for one in fresh_requests(next(self.numbers)):
                self.ask(one)

    def large(self) -> None:
        while not self.end.is_set():
            for one in hostile_requests(LARGE, 64):
                self.ask(one)
                if self.end.is_set():
                    return

    def leaving(self) -> None:
        chance = random.Random(1)
        while not self.end.is_set():
            for one in fresh_requests(next(self.numbers)):
                self.ask(one, leave=chance.random() < 0.5)

    def look(self) -> dict[str, int]:
        """Memory in kB, threads and descriptors of the server's process."""
        own = Path(f"/proc/{self.process}")
        lines = (own / "status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return {
            "resident_kb": int(fields["VmRSS"].split()[0]),
            "threads": int(fields["Threads"]),
            "descriptors": len(list((own / "fd").iterdir())),
        }

    def run(self, minutes: float) -> int:
        looks = []
        for _ in range(CYCLES):
            self.end.clear()
            jobs = (self.fresh, self.large, self.leaving)
            threads = [threading.Thread(target=job) for job in jobs]
            for thread in threads:
                thread.start()
            time.sleep(minutes * 60 / CYCLES)
            self.end.set()
            for thread in threads:
                thread.join()
            time.sleep(CALM_S)
            looks.append(self.look())
            self.say(**looks[-1])
        # The first third is for what fills up once: caches of fixed sizes, gaps in the memory.
        third = CYCLES // 3
        before, after = looks[third:-third], looks[-third:]
        grown = {
            name: max(one[name] for one in after) - max(one[name] for one in before)
            for name in looks[0]
        }
        self.say(grown=grown, wrong=self.wrong[:5])
        return int(bool(self.wrong) or any(grown[name] > most for name, most in ALLOWED.items()))

    def say(self, **values: Any) -> None:
        statuses = {str(status): count for status, count in sorted(self.statuses.items())}
        print(json.dumps({**values, "answers": statuses}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = make_hostile_models(Path(folder))
        with serving_process(models, "--kv-tokens", "4096") as (port, process):
            return Soak(port, process, chosen.seed).run(chosen.minutes)


if __name__ == "__main__":
    sys.exit(main())
