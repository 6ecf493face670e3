"""Sorts the lines of a file by how well they answer a query, with a cross-encoder.

    python examples/rerank.py "a query" FILE [--model NAME] [--top 10]

A search engine finds a hundred documents fast; a cross-encoder reads the query and each of them
together, and puts the best first. FILE may be - for the standard input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import packhorse


def rerank(query: str, documents: Sequence[str], model_name: str) -> list[tuple[float, str]]:
    """(score, document), best first."""
    with packhorse.TextModel.load(model_name) as model:
        scores = model.score(query, list(documents))
    return [(float(scores[i]), documents[i]) for i in np.argsort(-scores)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query")
    parser.add_argument("file")
    parser.add_argument("--model", default="cross-encoder/ms-marco-MiniLM-L6-v2")
    parser.add_argument("--top", type=int, default=10)
    chosen = parser.parse_args()
    text = sys.stdin.read() if chosen.file == "-" else Path(chosen.file).read_text("utf-8")
    documents = [line for line in text.splitlines() if line.strip()]
    for score, document in rerank(chosen.query, documents, chosen.model)[: chosen.top]:
        print(f"{score:8.4f}  {document}")


if __name__ == "__main__":
    main()
