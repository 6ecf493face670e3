"""`packhorse score` and `packhorse classify`: a line of JSON for each line of text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from packhorse import TextModel
from packhorse.cli.lines import open_lines
from packhorse.cli.writers import note_truncated


def _each_line(
    model: TextModel, chunks: Iterable[list[str]], find: Callable[[list[str]], Iterable[Any]]
) -> None:
    number = 0
    for lines in chunks:
        for fields in find(lines):
            print(json.dumps({"index": number, **fields}, ensure_ascii=False))
            number += 1
        sys.stdout.flush()
    note_truncated(model)


def score_file(
    model: Path, query: str, file: Path, instruction: str | None, load: dict[str, Any]
) -> None:
    """Prints how well each line of `file` ("-": stdin) answers the query."""
    with open_lines(file, "scoring") as chunks:
        loaded = TextModel.load(model, **load)

        def find(lines: list[str]) -> list[dict[str, Any]]:
            found = loaded.score(query, lines, instruction=instruction)
            return [{"score": value} for value in found.tolist()]

        find([])  # whether the model scores at all
        _each_line(loaded, chunks, find)


def classify_file(model: Path, file: Path, top_k: int, load: dict[str, Any]) -> None:
    """Prints the labels of each line of `file` ("-": stdin), or the entities in it."""
    with open_lines(file, "classifying") as chunks:
        loaded = TextModel.load(model, **load)
        classifier = loaded.session.config.get("heads", {}).get("classifier", {})

        def find(lines: list[str]) -> list[dict[str, Any]]:
            if classifier.get("input") == "tokens":
                found = loaded.classify_tokens(lines, aggregation_strategy="simple")
                return [{"entities": entities} for entities in found]
            if top_k == 1:
                return list(loaded.classify(lines))
            return [{"labels": labels} for labels in loaded.classify(lines, top_k=top_k)]

        find([])  # whether the model labels anything
        _each_line(loaded, chunks, find)
