"""Finds names of people, places and organisations in a text file, and counts them.

    python examples/tag_entities.py FILE [--model NAME] [--json]

Prints each entity with its kind and how often it occurs, or with --json one line of JSON for each
line of the file that has any.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import packhorse


def tag(lines: Sequence[str], model_name: str) -> list[list[dict[str, Any]]]:
    """The entities of each line."""
    with packhorse.TextModel.load(model_name) as model:
        return model.classify_tokens(list(lines), aggregation_strategy="simple")


def count(tagged: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[tuple[str, str], int]]:
    """((kind, text), how often), the most frequent first."""
    return Counter(
        (entity["entity_group"], entity["word"]) for line in tagged for entity in line
    ).most_common()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="dslim/bert-base-NER")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    lines = [line for line in chosen.file.read_text("utf-8").splitlines() if line.strip()]
    tagged = tag(lines, chosen.model)
    if chosen.json:
        for line, entities in zip(lines, tagged, strict=True):
            if entities:
                print(json.dumps({"text": line, "entities": entities}, default=float))
        return
    for (kind, word), times in count(tagged):
        print(f"{times:6}  {kind:6}  {word}")


if __name__ == "__main__":
    main()
