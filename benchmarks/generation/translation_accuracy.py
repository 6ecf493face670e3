"""Distance of translation models in fewer bits from themselves in float32.

    python benchmarks/generation/cpu_translation_models.py opus-mt FOLDER
    python benchmarks/generation/translation_accuracy.py FOLDER/hf

The model translates 24 random sources in float32, then every dtype gives log-probabilities of these
translations, token by token. Prints the mean and the largest difference, and how often the most
probable token is the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse

SOURCES = 24
NEW = 32


def load(arguments: argparse.Namespace, dtype: str) -> Any:
    return packhorse.Session.load(
        arguments.folder, dtype=dtype, kv_tokens=16384, threads=arguments.threads
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16", "int8"])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    config = json.loads((arguments.folder / "config.json").read_text())
    start = [config["decoder_start_token_id"]]
    rng = np.random.default_rng(3)
    sources = [
        rng.integers(100, config["vocab_size"] - 100, n).astype(np.int32)
        for n in rng.integers(4, 60, SOURCES)
    ]
    sampling = packhorse.Sampling(max_new_tokens=NEW, ignore_eos=True)
    with load(arguments, "float32") as session:
        made = session.generate([start] * SOURCES, sampling, sources=sources)
    targets = [np.array([*start, *one.ids], np.int32) for one in made]

    def score(dtype: str) -> tuple[Any, Any]:
        scoring = packhorse.Sampling(max_new_tokens=1, prompt_logprobs=1)
        with load(arguments, dtype) as session:
            scored = session.generate(targets, scoring, sources=sources)
        told = [one.prompt_logprobs for one in scored]
        best = [row[0][0] for one in told for row in one.top]
        return np.concatenate([np.asarray(one.logprobs) for one in told]), np.array(best)

    logprobs, best = score("float32")
    print("| dtype | mean difference | largest | same token |\n|---|---:|---:|---:|")
    for dtype in arguments.dtypes:
        found, its_best = score(dtype)
        away = np.abs(found - logprobs)
        same = (best == its_best).mean()
        print(f"| {dtype} | {away.mean():.4f} | {away.max():.4f} | {same:.3f} |", flush=True)


if __name__ == "__main__":
    main()
