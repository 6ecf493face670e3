"""`packhorse bench`: measures tokens per second on batches of sequences of different lengths."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import packhorse_weights
from packhorse_weights.spec import sees, stem_of
from rich.console import Console

from packhorse import Session, pack, plan_memory
from packhorse.cli.tables import show_rows
from packhorse.load_options import LoadOptions
from packhorse.text.settings import longest_sequence

_BATCHES = 16  # number of different batches, which take turns


def run(
    model: str,
    load: dict[str, Any],
    sequences: int,
    seconds: float,
    explain: bool,
) -> None:
    """Measures and prints the speed. Ids are random; lengths are uniform from 1 to the longest.

    A run computes the embedding of each sequence. load: arguments of `Session.load`, and of lengths
    the longest, "max_length". explain: prints the kernels that the batches take, too. Raises
    ValueError.
    """
    max_length = load.pop("max_length", None)
    spec = packhorse_weights.inspect_checkpoint(model, **LoadOptions(**load).reading()).spec
    if sees(spec):
        raise ValueError(f"{model} takes images: bench measures models of texts")
    plan_memory(spec)  # checks the spec, so its fields can be trusted from here on
    longest = longest_sequence(spec, max_length)
    session = Session.load(
        model, max_tokens=sequences * longest, max_sequences=sequences, kv_tokens=0, **load
    )
    random = np.random.default_rng(0)
    batches = []
    for _ in range(_BATCHES):
        lengths = random.integers(1, longest, sequences, endpoint=True)
        batches.append(pack([random.integers(0, stem_of(spec)["vocab_size"], n) for n in lengths]))

    rates: list[float] = []
    console = Console(stderr=True)
    with console.status(f"measuring for {seconds:g} s"):
        for batch in batches[:3]:  # to warm up
            session.run(batch, outputs=["embedding"])
        end = time.perf_counter() + seconds
        while not rates or time.perf_counter() < end:
            batch = batches[len(rates) % _BATCHES]
            start = time.perf_counter()
            session.run(batch, outputs=["embedding"])
            rates.append(batch.num_tokens / (time.perf_counter() - start))

    tokens = sum(batch.num_tokens for batch in batches)
    padded = sum(sequences * int(batch.lengths.max()) for batch in batches)
    rate = statistics.median(rates)
    rows = {
        "batches": f"{len(rates)} of {sequences} sequences, 1 to {longest} tokens each",
        "computed in": f"{session.dtype} on {session.device}",
        "tokens/s": f"{rate:,.0f} (median; {min(rates):,.0f} to {max(rates):,.0f})",
        "sequences/s": f"{rate * sequences * _BATCHES / tokens:,.0f}",
        "padding avoided": f"{padded / tokens - 1:.0%} more tokens if batches were padded",
    }
    show_rows(model, rows)
    if explain:
        chosen = dict.fromkeys(line for batch in batches for line in session.explain(batch))
        lines = chosen or [f"{session.device} has no choice of kernels"]
        show_rows("Kernels", {str(i): line for i, line in enumerate(lines, 1)})
