"""Runs sessions for a long time at random shapes: encoders from two threads and generation.
Every result is compared, bit by bit, with that of the same sequence alone, and the memory of the
process is watched, on a GPU also what it has of the device's.

    python tests/soak.py [--minutes 30] [--device cpu] [--seed 1]      (`nox -s soak`)

Prints a line of JSON now and then, and one at the end. Exits with 1 where a result differed, or
where the process was larger in the last third of the time than in the second by more than 64 kB, or
had more of the device's memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "python" / "support"))
import packhorse
from models import decoder_spec, tiny_spec, write_model

SEQUENCES = 400  # pool that batches are drawn from
PROMPTS = 60
VOCABULARY = 500

ENCODER = tiny_spec(vocab_size=VOCABULARY, hidden_size=96, num_heads=6, intermediate_size=200)
DECODER = decoder_spec(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=120)


def status(name: str) -> int:
    """A number of /proc/self/status: kilobytes, or a count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


def device_mib() -> int:
    """Memory of GPUs that this process has, as nvidia-smi knows it; 0 where it does not."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    rows = [line.split(",") for line in listed.splitlines()]
    return sum(
        int(used) for pid, used in rows if pid == str(os.getpid()) and used.strip().isdigit()
    )


class Soak:
    def __init__(self, folder: Path, device: str, seed: int) -> None:
        self.device, self.seed = device, seed
        self.encoder = packhorse.Session.load(
            write_model(folder / "encoder", ENCODER), device, max_tokens=4096, max_sequences=64
        )
        self.decoder = packhorse.Session.load(
            write_model(folder / "decoder", DECODER),
            device,
            kv_tokens=4096,
            max_tokens=256,
            max_sequences=16,
        )
        rng = np.random.default_rng(seed)
        # Most texts are short, some as long as the model takes.
        lengths = np.minimum(300, 1 + rng.gamma(0.8, 60, SEQUENCES).astype(int))
        self.ids = [rng.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths]
        self.hidden = [self.encoder.run([ids]).hidden.copy() for ids in self.ids]
        self.prompts = [rng.integers(0, VOCABULARY, 1 + i * 3).tolist() for i in range(PROMPTS)]
        self.samplings = [
            packhorse.Sampling(
                max_new_tokens=4 + i % 40,
                ignore_eos=True,
                temperature=0.0 if i % 2 else 0.8,
                seed=i,
            )
            for i in range(PROMPTS)
        ]
        self.texts = [
            list(self.decoder.generate([prompt], sampling)[0].ids)
            for prompt, sampling in zip(self.prompts, self.samplings, strict=True)
        ]
        self.end = threading.Event()
        self.counts = dict.fromkeys(("batches", "sequences", "tokens", "generated"), 0)
        self.wrong: list[str] = []

    def encode(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self.end.is_set():
            chosen = rng.integers(0, SEQUENCES, rng.integers(0, 60))
            total = np.cumsum([self.ids[i].size for i in chosen])
            chosen = chosen[: int(np.searchsorted(total, 4096))]
            result = self.encoder.run([self.ids[i] for i in chosen]).hidden
            at = 0
            for i in chosen:
                alone = self.hidden[i]
                if not np.array_equal(result[at : at + len(alone)], alone):
                    self.wrong.append(f"sequence {i} of seed {self.seed}")
                at += len(alone)
            self.counts["batches"] += 1
            self.counts["sequences"] += len(chosen)
            self.counts["tokens"] += at

    def generate(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self.end.is_set():
            chosen = rng.integers(0, PROMPTS, rng.integers(1, 24))
            requests = [
                self.decoder.submit(self.prompts[i], self.samplings[i], timeout_s=600)
                for i in chosen
            ]
            for i, request in zip(chosen, requests, strict=True):
                if rng.integers(8) == 0:
                    request.cancel()
                    request.result()
                    continue
                if list(request.result().ids) != self.texts[i]:
                    self.wrong.append(f"prompt {i} of seed {self.seed}")
            self.counts["generated"] += len(chosen)

    def run(self, minutes: float) -> int:
        threads = [threading.Thread(target=self.encode, args=(self.seed + i,)) for i in (1, 2)]
        threads.append(threading.Thread(target=self.generate, args=(self.seed + 3,)))
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        memory: list[tuple[float, int]] = []
        of_device: list[int] = []
        while (at := time.monotonic() - begin) < minutes * 60 and not self.wrong:
            time.sleep(min(10, minutes * 6))
            gc.collect()
            memory.append((at / 60, status("VmRSS")))
            of_device.append(device_mib() if self.device.startswith("cuda") else 0)
            if len(memory) % 6 == 1:
                self.say(minutes=round(at / 60, 1), resident_kb=memory[-1][1])
        self.end.set()
        for thread in threads:
            thread.join()
        # The first third is for caches of malloc and Python, which fill up.
        third = max(1, len(memory) // 3)
        peaks = [
            max((kb for _, kb in part), default=0)
            for part in (memory[third:-third], memory[-third:])
        ]
        grown = peaks[1] - peaks[0]
        device_grown = max(of_device[-third:], default=0) - max(of_device[third:-third], default=0)
        self.say(
            minutes=round((time.monotonic() - begin) / 60, 1),
            device=self.device,
            wrong=self.wrong[:5],
            resident_kb=[resident for _, resident in memory[:: max(1, len(memory) // 12)]],
            grown_kb=grown,
            device_mib=of_device[:: max(1, len(of_device) // 12)],
            threads=status("Threads"),
        )
        return int(bool(self.wrong) or grown > 64 or device_grown > 0)

    def say(self, **values: Any) -> None:
        print(json.dumps({**values, **self.counts}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return Soak(Path(folder), chosen.device, chosen.seed).run(chosen.minutes)


if __name__ == "__main__":
    sys.exit(main())
