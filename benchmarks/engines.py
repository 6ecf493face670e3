"""What is timed: anything that runs a batch of token ids.

Here Packhorse, and two measures of what limits it; the peers are in peers.py. All take the same
lists of ids: packing or padding them, masks and copies are part of an engine's time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
from cases import Batch, Sizes

FloatArray = npt.NDArray[np.float32]

PACKHORSE = "Packhorse"
ONE_TOKEN_SEQUENCES = "Packhorse, every token a sequence"
PRODUCTS_ALONE = "matrix products alone"


@dataclass(frozen=True)
class Engine:
    name: str
    dtype: str  # of the arithmetic
    run: Callable[[Batch], Any]
    # (what `run` returned, the batch) -> last hidden state [T, hidden_size] without padding.
    # None: not an encoder, or not one of this batch.
    hidden: Callable[[Any, Batch], FloatArray] | None


def packhorse_engines(folder: Path, _cache: Path, threads: int) -> Iterator[Engine]:
    """Packhorse, and Packhorse with next to no attention: the difference is what that costs."""
    for dtype in ("float32", "bfloat16", "int8"):
        load = partial(packhorse.Session.load, folder, dtype=dtype, threads=threads)
        try:
            session = load()
        except RuntimeError as error:  # the processor lacks the dtype
            print(f"{PACKHORSE} {dtype} left out: {error}")
            continue
        wide = load(max_sequences=session.max_tokens)

        def one_token_sequences(batch: Batch, session: packhorse.Session = wide) -> None:
            ids = np.concatenate(batch)
            session.run((ids, np.arange(len(ids) + 1)))

        yield Engine(PACKHORSE, dtype, session.run, lambda result, batch: result.hidden)
        yield Engine(ONE_TOKEN_SEQUENCES, dtype, one_token_sequences, None)


def product_engines(folder: Path, _cache: Path, threads: int) -> Iterator[Engine]:
    """The encoder's matrix products alone, at the best rate that PyTorch's libraries reach.

    Blocks of 256 rows that stay in cache; no bias, no activation, no attention.
    """
    import torch

    torch.set_num_threads(threads)
    sizes, rows = Sizes.read(folder), 256

    def plain(x: Any, weight: Any) -> Callable[[], Any]:
        out, transposed = torch.empty(len(x), len(weight), dtype=x.dtype), weight.t()
        return lambda: torch.mm(x, transposed, out=out)

    def prepacked(x: Any, weight: Any) -> Callable[[], Any]:  # oneDNN
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
        return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        candidates: list[tuple[float, list[Callable[[], Any]]]] = []
        with torch.inference_mode():
            operands = [
                (torch.randn(rows, k, dtype=dtype), torch.randn(n, k, dtype=dtype))
                for k, n in sizes.linear_layers
            ]
            for make in (plain, prepacked):
                # The second is not a public interface of PyTorch: it may go.
                with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
                    products = [make(x, weight) for x, weight in operands]
                    candidates.append((_shortest(products), products))
        _, best = min(candidates, key=lambda candidate: candidate[0])

        def run(batch: Batch, products: Sequence[Callable[[], Any]] = best) -> None:
            blocks = round(sum(len(row) for row in batch) / rows) or 1
            with torch.inference_mode():
                for _ in range(sizes.num_layers * blocks):
                    for product in products:
                        product()

        yield Engine(PRODUCTS_ALONE, name, run, None)


def _shortest(products: Sequence[Callable[[], Any]], trials: int = 20) -> float:
    seconds = []
    for _ in range(trials):
        start = time.perf_counter()
        for product in products:
            product()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
