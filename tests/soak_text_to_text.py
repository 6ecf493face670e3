"""Runs models with an encoder and a decoder for a long time: requests of several callers that come
at random, with and without beams, some of them cancelled or with deadlines, in caches that are too
small for all. Every result is compared with that of its request alone, and at the end no page may
be missing.

    python tests/soak_text_to_text.py [--minutes 15] [--seed 1]   (`nox -s soak-text-to-text`)

Prints a line of JSON for each model and dtype. Exits with 1 where a result differed, a request
failed, or a page is still in use or missing when all have ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import packhorse

MODELS = Path(__file__).resolve().parent / "golden" / "text_to_text"
CASES = [("marian", "float32"), ("t5", "bfloat16"), ("umt5", "float32"), ("m2m-100", "int8")]
REQUESTS = 48  # what callers draw from
CALLERS = 3
PAGE = 64


class Soak:
    def __init__(self, name: str, dtype: str, seed: int) -> None:
        self.name, self.dtype, self.seed = name, dtype, seed
        folder = MODELS / name
        start = json.loads((folder / "generation_config.json").read_text())
        # Pages for a few of the requests that run: sources and beams give way to others.
        options: dict[str, Any] = {"dtype": dtype, "max_sequences": 16, "threads": 2}
        self.session = packhorse.Session.load(folder, kv_tokens=20 * PAGE, **options)
        rng = np.random.default_rng(seed)
        longest = min(self.session.max_source_tokens, 4 * PAGE)
        lengths = np.minimum(longest, 1 + rng.gamma(0.8, 60, REQUESTS).astype(int))
        vocabulary = self.session.vocab_size
        self.sources = [rng.integers(3, vocabulary - 2, n).astype(np.int32) for n in lengths]
        self.prompts = [
            np.array([start["decoder_start_token_id"], *rng.integers(3, vocabulary - 2, n)])
            for n in rng.integers(0, 8, REQUESTS)
        ]
        self.samplings = [self._sampling(i) for i in range(REQUESTS)]
        with packhorse.Session.load(folder, kv_tokens=64 * PAGE, **options) as alone:
            self.expected = [
                self._texts(
                    alone.submit(self.prompts[i], self.samplings[i], source=self.sources[i])
                )
                for i in range(REQUESTS)
            ]
        self.end = threading.Event()
        self.counts = dict.fromkeys(("compared", "cancelled", "overdue"), 0)
        self.wrong: list[str] = []

    @staticmethod
    def _sampling(number: int) -> packhorse.Sampling:
        if number % 3 == 2:
            return packhorse.Sampling(
                max_new_tokens=4 + 7 * number % 90, temperature=0.9, seed=number, n=2
            )
        beams = (1, 4)[number % 3]
        return packhorse.Sampling(max_new_tokens=4 + 7 * number % 150, num_beams=beams)

    @staticmethod
    def _texts(request: Any) -> list[tuple[int, ...]]:
        return [tuple(one.ids) for one in request.results()]

    def call(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self.end.is_set():
            chosen = rng.integers(0, REQUESTS, rng.integers(1, 10))
            requests = []
            for i in chosen:
                time.sleep(rng.exponential(0.003))
                sampling = self.samplings[i]
                late = bool(rng.integers(10) == 0)
                if late:
                    sampling = packhorse.Sampling(
                        max_new_tokens=90, num_beams=sampling.num_beams, deadline_s=0.02
                    )
                request = self.session.submit(
                    self.prompts[i], sampling, source=self.sources[i], timeout_s=600
                )
                requests.append((i, late, request))
            for i, late, request in requests:
                if not late and rng.integers(6) == 0:
                    request.cancel()
                    request.results()
                    self.counts["cancelled"] += 1
                    continue
                try:
                    texts = self._texts(request)
                except RuntimeError as error:
                    self.wrong.append(f"request {i}: {error}")
                    return
                self.counts["overdue" if late else "compared"] += 1
                if not late and texts != self.expected[i]:
                    self.wrong.append(f"request {i} of seed {self.seed}")

    def run(self, seconds: float) -> bool:
        """True if all was well."""
        threads = [
            threading.Thread(target=self.call, args=(self.seed + i,)) for i in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        most_used = 0
        while time.monotonic() < until and not self.wrong:
            time.sleep(0.05)
            most_used = max(most_used, self.session.stats["pages_used"])
        self.end.set()
        for thread in threads:
            thread.join()
        stats = self.session.stats
        self.session.close()
        leaked = stats["pages"] - stats["pages_free"] - stats["pages_cached"]
        names = ("steps", "new_tokens", "preemptions", "pages", "running", "queued")
        found = {"model": self.name, "dtype": self.dtype, **self.counts, "most_used": most_used}
        found |= {name: stats[name] for name in names}
        print(json.dumps({**found, "leaked": leaked, "wrong": self.wrong[:5]}), flush=True)
        return not (self.wrong or leaked or stats["pages_used"] or stats["running"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    seconds = chosen.minutes * 60 / len(CASES)
    soaks = [Soak(name, dtype, chosen.seed).run(seconds) for name, dtype in CASES]
    return int(not all(soaks))


if __name__ == "__main__":
    sys.exit(main())
