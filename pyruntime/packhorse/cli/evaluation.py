"""`packhorse evaluate`: measures how far the embeddings of a dtype are from those of float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def read_texts(file: Path | None, errors: str, count: int) -> list[str]:
    """The first `count` lines of a file that are not empty, or passages of Python's documentation
    if there is no file."""
    if file is None:
        return [passage.text for passage in read_passages(count)]
    texts: list[str] = []
    with open_lines(file, "reading", errors) as reader:
        for lines in reader:
            texts += [text for text in lines.texts if text.strip()]
            if len(texts) >= count:
                break
        reader.note()
    return texts[:count]


def nearest(rows: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """Returns [B, count]: for each row the indices of the most similar other rows by cosine, most
    similar first."""
    result = np.empty((len(rows), count), np.intp)
    for i, row in enumerate(rows):
        scores = rows @ row
        scores[i] = -np.inf
        result[i] = np.argsort(-scores, kind="stable")[:count]
    return result


def compare(embeddings: FloatArray, reference: FloatArray) -> dict[str, float]:
    """Returns the cosine of each embedding with its reference, and how far nearest neighbours
    agree: the share of texts with the same nearest one, and the share of the ten nearest that are
    the same."""
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
    model: str,
    reference: str | None,
    load: dict[str, Any],
    file: Path | None,
    errors: str,
    count: int,
) -> None:
    """Prints `compare` of the embeddings of a model with those of the reference, which is by
    default the same model in float32 on the CPU.

    load: arguments of `TextModel.load` for the model; without a dtype they mean int8 on the CPU.
    Raises ValueError, and what `TextModel.load` raises.
    """
    texts = read_texts(file, errors, count)
    if len(texts) < 2:
        raise ValueError(f"{file}: {len(texts)} texts, expected at least 2 to compare")
    exact = load | {"device": "cpu", "dtype": "float32"}
    if load["device"] == "cpu":
        load = {"dtype": "int8"} | load
    with Console(stderr=True).status("embedding"):
        loaded = TextModel.load(model, kv_tokens=0, **load)
        found = loaded.embed(texts)
        expected = TextModel.load(reference or model, kv_tokens=0, **exact).embed(texts)
    session = loaded.session
    rows = {
        "texts": f"{len(texts):,}",
        **{name: f"{value:.5f}" for name, value in compare(found, expected).items()},
    }
    title = f"{model}: {session.dtype} on {session.device} beside float32 on cpu"
    show_rows(title, rows)
