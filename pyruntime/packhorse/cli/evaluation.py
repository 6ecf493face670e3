"""`packhorse evaluate`: how far the embeddings of a dtype are from those of float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from packhorse import TextModel
from packhorse.cli.lines import open_lines
from packhorse.cli.passages import read_passages
from packhorse.cli.tables import show_rows
from packhorse.result import FloatArray
from packhorse.text.embeddings import scale_to_length_1

_NEAREST = 10


def read_texts(file: Path | None, count: int) -> list[str]:
    """The first `count` lines of a file that are not empty; without a file, passages of Python's
    documentation."""
    if file is None:
        return [passage.text for passage in read_passages(count)]
    texts: list[str] = []
    with open_lines(file, "reading") as chunks:
        for lines in chunks:
            texts += [line for line in lines if line.strip()]
            if len(texts) >= count:
                break
    return texts[:count]


def nearest(rows: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """[B, count] the most similar other rows of each, by cosine, most similar first."""
    result = np.empty((len(rows), count), np.intp)
    for i, row in enumerate(rows):
        scores = rows @ row
        scores[i] = -np.inf
        result[i] = np.argsort(-scores, kind="stable")[:count]
    return result


def compare(embeddings: FloatArray, reference: FloatArray) -> dict[str, float]:
    """Cosines of each embedding with its reference, and how far the nearest neighbours agree:
    the share of texts with the same nearest one, and of the ten nearest that are the same."""
    ours, theirs = scale_to_length_1(embeddings), scale_to_length_1(reference)
    cosines = (ours.astype(np.float64) * theirs).sum(axis=1)
    count = min(_NEAREST, len(ours) - 1)
    found, expected = nearest(ours, count), nearest(theirs, count)
    common = [len(np.intersect1d(a, b)) for a, b in zip(found, expected, strict=True)]
    percentiles = np.percentile(cosines, [0.1, 1, 5, 50])
    return {
        "cosine, smallest": float(cosines.min()),
        "cosine, 0.1 %": float(percentiles[0]),
        "cosine, 1 %": float(percentiles[1]),
        "cosine, 5 %": float(percentiles[2]),
        "cosine, median": float(percentiles[3]),
        "cosine, mean": float(cosines.mean()),
        "nearest neighbour the same": float((found[:, 0] == expected[:, 0]).mean()),
        f"of the {count} nearest the same": float(np.mean(common) / count),
    }


def run(
    model: Path,
    reference: Path,
    dtype: str,
    file: Path | None,
    count: int,
    max_length: int | None,
    threads: int | None,
) -> None:
    """Prints `compare` of the embeddings. Raises ValueError, and what TextModel.load raises."""
    texts = read_texts(file, count)
    if len(texts) < 2:
        raise ValueError(f"{file}: {len(texts)} texts, expected at least 2 to compare")
    embeddings = []
    with Console(stderr=True).status("embedding"):
        for folder, chosen in ((reference, "float32"), (model, dtype)):
            loaded = TextModel.load(folder, dtype=chosen, max_length=max_length, threads=threads)
            embeddings.append(loaded.embed(texts))
    rows = {
        "texts": f"{len(texts):,}",
        **{name: f"{value:.5f}" for name, value in compare(embeddings[1], embeddings[0]).items()},
    }
    show_rows(f"{model}: {dtype} beside float32", rows.items())
