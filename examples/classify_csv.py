"""Adds a label and its score to each row of a CSV file.

    python examples/classify_csv.py IN.csv OUT.csv --column text [--model NAME]

The rows are read and written in pieces, so that files may be larger than the memory.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import packhorse

PIECE = 2000  # rows


def pieces(rows: Iterator[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    while piece := list(islice(rows, PIECE)):
        yield piece


def classify(source: Path, target: Path, column: str, model_name: str) -> int:
    """Writes `target` and returns how many rows it has. Its new columns are label and score."""
    count = 0
    with (
        packhorse.TextModel.load(model_name) as model,
        source.open(newline="", encoding="utf-8") as given,
        target.open("w", newline="", encoding="utf-8") as file,
    ):
        reader = csv.DictReader(given)
        names = list(reader.fieldnames or ())
        if column not in names:
            raise SystemExit(f"{source} has no column {column!r}; it has {', '.join(names)}")
        writer = csv.DictWriter(file, [*names, "label", "score"])
        writer.writeheader()
        for piece in pieces(reader):
            found = model.classify([row[column] or "" for row in piece])
            for row, best in zip(piece, found, strict=True):
                writer.writerow({**row, "label": best["label"], "score": f"{best['score']:.4f}"})
            count += len(piece)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--column", default="text")
    parser.add_argument(
        "--model", default="distilbert/distilbert-base-uncased-finetuned-sst-2-english"
    )
    chosen = parser.parse_args()
    count = classify(chosen.source, chosen.target, chosen.column, chosen.model)
    print(f"{count} rows in {chosen.target}")


if __name__ == "__main__":
    main()
