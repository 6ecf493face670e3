"""Speculative decoding on real text: tokens per second with drafts and without, at batch 1.

    python benchmarks/generation/speculation.py [MODEL.gguf] --dtype float32 --draft ngram int8
    python benchmarks/generation/speculation.py [MODEL.gguf] --batch 8

Texts are docstrings and functions of Python's standard library; the model is SmolLM2-135M-Instruct
where none is named. It is asked to copy-edit and to summarise them, to add type hints, and to write
something of its own, with the most probable tokens and drawn at temperature 0.8. A text ends where
the model ends it. `--draft` names what drafts: "ngram", or a dtype in which the same model drafts.

A round takes every text of a task with each session, in an order that turns from round to round.
Decode is timed from the first new token to the last. Reported are medians over rounds of the rates
of all texts of a task together, ratios as medians of those within each round, and how many of the
drafts were accepted. Every text must be the same ids with drafts and without.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import inspect
import json
import os
import platform
import statistics
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packhorse

sys.path += [str(Path(__file__).parents[2] / name) for name in ("benchmarks/lib", "examples")]
from packhorse import GenerationSession, Sampling, TextModel
from sample import find_language_model
from workloads import read_passages

PLAIN = "none"
FUNCTIONS: list[Callable[..., Any]] = [
    textwrap.shorten,
    statistics.quantiles,
    zipfile.is_zipfile,
    inspect.cleandoc,
]
OWN = [
    "Write a short story about a lighthouse keeper and a storm.",
    "Explain why the sky is blue.",
    "What should I pack for a week in the mountains?",
    "Describe how bread is made.",
]
TEMPERATURES = {"greedy": 0.0, "temperature 0.8": 0.8}

Prompt = list[int]
Rates = dict[str, dict[str, list[float]]]  # task -> draft -> a rate for each round


def misspell(text: str) -> str:
    """The text with two letters swapped in every sixth word of more than four."""
    words = text.split(" ")
    for i in range(0, len(words), 6):
        if len(words[i]) > 4 and words[i].isalpha():
            words[i] = words[i][0] + words[i][2] + words[i][1] + words[i][3:]
    return " ".join(words)


def tasks(model: TextModel, count: int) -> dict[str, list[Prompt]]:
    """`count` prompts of each task, as token ids."""
    passages = [one.text for one in read_passages(400) if 60 <= len(one.text.split()) <= 90]
    texts = passages[: 2 * count]
    asked = {
        "copy-edit": [
            f"Correct the spelling of this text, and change nothing else:\n\n{misspell(text)}"
            for text in texts[:count]
        ],
        "summarise": [f"Summarise this text in a paragraph:\n\n{text}" for text in texts[count:]],
        "add type hints": [
            f"Add type hints to this function:\n\n{inspect.getsource(function)}"
            for function in FUNCTIONS[:count]
        ],
        "write": OWN[:count],
    }
    render = model.apply_chat_template
    return {
        task: [
            model.tokenizer.plain_ids(render([{"role": "user", "content": text}])).tolist()
            for text in prompts
        ]
        for task, prompts in asked.items()
    }


def load(model: Path, draft: str, arguments: argparse.Namespace) -> GenerationSession:
    options: dict[str, Any] = {}
    if draft != PLAIN:
        options = {"draft": "ngram", "draft_tokens": arguments.draft_tokens}
        if draft != "ngram":
            options |= {"draft": model, "draft_dtype": draft}
    session = packhorse.Session.load(
        model,
        arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        kv_tokens=16384,
        max_sequences=max(8, arguments.batch),
        prefix_cache=False,
        **options,
    )
    assert isinstance(session, GenerationSession)
    return session


def run(session: GenerationSession, prompt: Prompt, sampling: Sampling, batch: int) -> Any:
    """(new tokens after the first, seconds that they took, ids of each copy, usage)"""
    seeds = [dataclasses.replace(sampling, seed=seed) for seed in range(batch)]
    requests = [session.submit(prompt, one) for one in seeds]
    tokens = requests[0].tokens()
    next(tokens)
    start = time.perf_counter()
    found = [request.result() for request in requests]
    seconds = time.perf_counter() - start
    return sum(len(one.ids) - 1 for one in found), seconds, [one.ids for one in found], found


def measure(
    sessions: dict[str, GenerationSession],
    prompts: dict[str, list[Prompt]],
    arguments: argparse.Namespace,
) -> tuple[Rates, dict[str, dict[str, tuple[int, int, int]]]]:
    """(tokens per second; new tokens, drafts and accepted ones of a round)"""
    names = list(sessions)
    rates: Rates = {}
    counts: dict[str, dict[str, tuple[int, int, int]]] = {}
    for number in range(arguments.rounds):
        for task, texts in prompts.items():
            for how, temperature in TEMPERATURES.items():
                sampling = Sampling(
                    temperature=temperature, max_new_tokens=arguments.new_tokens, logprobs=0
                )
                row = f"{task}, {how}"
                expected: list[Any] = []
                for step in range(len(names)):
                    name = names[(number + step) % len(names)]
                    made = [run(sessions[name], one, sampling, arguments.batch) for one in texts]
                    ids = [one[2] for one in made]
                    expected = expected or ids
                    assert ids == expected, f"{row}: other tokens with {name}"
                    rate = sum(one[0] for one in made) / sum(one[1] for one in made)
                    rates.setdefault(row, {}).setdefault(name, []).append(rate)
                    usages = [result.usage for one in made for result in one[3]]
                    counts.setdefault(row, {})[name] = (
                        sum(usage.new_tokens for usage in usages),
                        sum(usage.drafted_tokens for usage in usages),
                        sum(usage.accepted_tokens for usage in usages),
                    )
    return rates, counts


def table(rates: Rates, counts: dict[str, dict[str, tuple[int, int, int]]]) -> str:
    """Medians; of drafts also how many times faster, and accepted of drafted tokens."""
    names = list(next(iter(rates.values())))
    names.sort(key=lambda name: name != PLAIN)
    lines = ["| tokens/s | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for row, found in rates.items():
        cells = []
        for name in names:
            cell = f"{statistics.median(found[name]):.1f}"
            if name != PLAIN:
                pairs = zip(found[name], found[PLAIN], strict=True)
                ratio = statistics.median(ours / plain for ours, plain in pairs)
                new, drafted, accepted = counts[row][name]
                cell += f" ({ratio:.2f}x; {accepted} of {drafted} drafts for {new} tokens)"
            cells.append(cell)
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file or a folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--draft", nargs="+", default=["ngram"], metavar="ngram|DTYPE")
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1, help="copies of each request at once")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each task, at most 4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a JSON file of all rates")
    arguments = parser.parse_args()
    model = arguments.model or find_language_model()
    with TextModel.load(model, kv_tokens=64, threads=1) as texts:
        prompts = tasks(texts, arguments.prompts)
    sessions = {name: load(model, name, arguments) for name in [PLAIN, *arguments.draft]}
    for session in sessions.values():
        session.generate([[1, 2, 3]], Sampling(max_new_tokens=8))
    rates, counts = measure(sessions, prompts, arguments)
    for session in sessions.values():
        session.close()
    print(table(rates, counts))
    if arguments.output:
        named = (
            "device",
            "dtype",
            "draft_tokens",
            "threads",
            "batch",
            "new_tokens",
            "prompts",
            "rounds",
        )
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": platform.processor() or platform.machine(),
            "load_average": os.getloadavg(),
            "arguments": {name: getattr(arguments, name) for name in named},
            "tokens_per_second": rates,
            "new_drafted_accepted": counts,
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
