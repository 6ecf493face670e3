"""Generation beside transformers on one GPU: 64 requests of mixed lengths, GPT-2 XL's shape.

    python benchmarks/generation/gpu_requests.py build/generation [--rounds 3]
        [--peers static-64 ...]

`build/generation` is benchmarks/generation/decoders.cc, whose first lines say how to compile it.
Prompts have 16 to 1,024 tokens and 16 to 256 new ones are asked for; weights are random, in
float16. Peers are transformers.generate in static batches, padded on the left, each until its
longest output is done, in the order given and sorted by the length of what is asked for; and its
continuous batching. Ours and theirs run in turn. Tokens that nobody asked for are not counted.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers

REQUESTS = 64


def workload(vocab_size: int) -> list[tuple[list[int], int]]:
    """The lengths that benchmarks/generation/decoders.cc takes, from the same generator; other
    ids."""
    bits = np.random.MT19937()
    bits._legacy_seeding(0)
    ids = np.random.default_rng(0)
    work = []
    for _ in range(REQUESTS):
        prompt = 16 + int(bits.random_raw()) % 1009
        new = 16 + int(bits.random_raw()) % 241
        work.append((ids.integers(0, vocab_size, prompt).tolist(), new))
    return work


def make_model() -> Any:
    config = transformers.GPT2Config(
        n_embd=1600, n_layer=48, n_head=25, n_positions=2048, attn_pdrop=0, resid_pdrop=0
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.float16)
        model = transformers.GPT2LMHeadModel(config).eval()
        torch.set_default_dtype(torch.float32)
    return model


def static(model: Any, work: list[tuple[list[int], int]], batch_size: int) -> None:
    for first in range(0, len(work), batch_size):
        batch = work[first : first + batch_size]
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long, device="cuda")
        mask = torch.zeros_like(ids)
        for row, (prompt, _) in enumerate(batch):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt, device="cuda")
            mask[row, longest - len(prompt) :] = 1
        count = max(new for _, new in batch)
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )


def continuous(model: Any, work: list[tuple[list[int], int]]) -> None:
    config = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=0
    )
    manager = model.init_continuous_batching(generation_config=config)
    manager.start()
    try:
        for i, (prompt, new) in enumerate(work):
            manager.add_request(prompt, request_id=str(i), max_new_tokens=new)
        done = 0
        while done < len(work):
            result = manager.get_result(timeout=60)
            if result is None:
                raise RuntimeError("no result within a minute")
            done += bool(result.is_finished())
    finally:
        manager.stop(block=True)


def timed(body: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    body()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def ours(program: str) -> list[float]:
    """Tokens per second of each round but the first."""
    done = subprocess.run(
        [program, "cuda", "float16", "gpt2-xl", "load"], capture_output=True, text=True, check=True
    )
    return [float(x) for x in re.findall(r"([\d.]+) new tokens/s", done.stdout)][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", help="benchmarks/generation/decoders.cc, compiled")
    parser.add_argument("--rounds", type=int, default=3)
    peers: dict[str, Callable[[Any, list[tuple[list[int], int]]], None]] = {
        "static-64": lambda model, work: static(model, work, 64),
        "static-16-sorted": lambda model, work: static(
            model, sorted(work, key=lambda request: request[1]), 16
        ),
        "static-16": lambda model, work: static(model, work, 16),
        "continuous": continuous,
    }
    parser.add_argument("--peers", nargs="+", choices=list(peers), default=list(peers))
    arguments = parser.parse_args()
    work = workload(50257)
    new = sum(count for _, count in work)
    print(f"{len(work)} requests, {sum(len(ids) for ids, _ in work)} prompt and {new} new tokens")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    rates: dict[str, list[float]] = {"Packhorse": []}
    with torch.inference_mode():
        model = make_model()
        static(model, work[:4], 4)
        for _ in range(arguments.rounds):
            rates["Packhorse"] += ours(arguments.program)
            for name in arguments.peers:
                try:
                    rate = new / timed(partial(peers[name], model, work))
                except Exception as error:  # a peer that cannot run is named, and left out
                    print(f"{name}: {type(error).__name__}: {error}", flush=True)
                    continue
                rates.setdefault(name, []).append(rate)
                best = statistics.median(rates["Packhorse"])
                print(f"{name}: {rate:,.0f} new tokens/s; Packhorse {best:,.0f}", flush=True)
    best = statistics.median(rates["Packhorse"])
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"{name:20} {rate:8,.0f} new tokens/s   {best / rate:5.2f}")


if __name__ == "__main__":
    main()
