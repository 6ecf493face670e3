"""Times texts to embeddings: `TextModel.embed` beside `SentenceTransformer.encode` as people call
it.

Both take the same list of strings in the same order and return float32 embeddings, so tokenizing is
part of their time. `encode` sorts the texts by length and pads them in batches of 32, its default;
Packhorse neither sorts nor pads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import packhorse
from engines import Engine, FloatArray
from figures import DTYPES, PACKHORSE
from peers import collect_engines
from rich.progress import Progress
from sample import read_passages
from timing import find_reference, interleave, min_cosine
from workloads import MINILM

SENTENCE_TRANSFORMERS = "SentenceTransformer.encode"
BATCH_SIZE = 32  # the default of encode


class Texts(NamedTuple):
    texts: list[str]
    lengths: list[int]  # in tokens


def read_texts(folder: Path, count: int) -> Texts:
    texts = [passage.text for passage in read_passages(count)]
    model = packhorse.TextModel.load(folder)
    tokens = model.tokenizer.encode(texts, model.max_length)
    return Texts(texts, [ids.size for ids in tokens.ids])


def padded_tokens(lengths: Sequence[int], batch_size: int = BATCH_SIZE) -> int:
    """The number of tokens that are computed if batches are padded to their longest text, in the
    order of `lengths`."""
    batches = [lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size)]
    return sum(len(batch) * max(batch) for batch in batches)


def packhorse_text_engines(folder: Path, _cache: Path, threads: int) -> Iterator[Engine]:
    for dtype in DTYPES:
        try:
            model = packhorse.TextModel.load(folder, dtype=dtype, threads=threads)
        except RuntimeError as error:  # the processor lacks the dtype
            print(f"{PACKHORSE} {dtype} left out: {error}")
            continue
        yield Engine(PACKHORSE, dtype, model.embed, lambda found, texts: found)


def sentence_transformers_engines(folder: Path, _cache: Path, threads: int) -> Iterator[Engine]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    for dtype in ("float32", "bfloat16"):
        kind = {"dtype": getattr(torch, dtype)}
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs=kind)

        def run(texts: Sequence[str], model: Any = model) -> FloatArray:
            return np.asarray(model.encode(list(texts), show_progress_bar=False), np.float32)

        yield Engine(SENTENCE_TRANSFORMERS, dtype, run, lambda found, texts: found)


def make_text_engines(
    folder: Path, cache: Path, threads: int
) -> tuple[list[Engine], dict[str, str]]:
    """Returns the engines that embed texts, and those that cannot with the reason."""
    packages = ("sentence-transformers", "torch", "transformers")
    return collect_engines(
        [(packhorse_text_engines, ()), (sentence_transformers_engines, packages)],
        folder,
        cache,
        threads,
    )


def measure_texts(
    folder: Path,
    engines: Sequence[Engine],
    count: int,
    rounds: int,
    seconds: float,
    progress: Progress,
    clock: str,
) -> dict[str, Any]:
    """Times all texts in one call of each engine. Returns the case in the form of the result
    file."""
    texts, lengths = read_texts(folder, count)
    outputs = [engine.run(texts) for engine in engines]
    reference = find_reference(engines)
    exact = outputs[list(engines).index(reference)]
    times = interleave(engines, [texts], rounds, seconds, progress, f"{count} texts", clock)
    return {
        "model": MINILM,
        "texts": len(texts),
        "tokens": sum(lengths),
        "padded_tokens": padded_tokens(lengths),
        "sorted_tokens": padded_tokens(sorted(lengths)),
        "reference": f"{reference.name} {reference.dtype}",
        "engines": [
            {
                "name": engine.name,
                "dtype": engine.dtype,
                "max_abs_error": float(np.abs(found - exact).max()),
                "min_cosine": min_cosine(found, exact),
                "seconds": taken,
            }
            for engine, found, taken in zip(engines, outputs, times, strict=True)
        ],
    }
