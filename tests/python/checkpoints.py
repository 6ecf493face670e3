"""Checkpoints that converter tests start from, and how they change them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packhorse_weights.safetensors_file import read_safetensors, write_safetensors

GOLDEN = Path(__file__).parents[1] / "golden"
BERT = GOLDEN / "bert-gelu"

Edit = Callable[[dict[str, Any]], object]


def edited(
    source: Path, target: Path, config: Edit | None = None, tensors: Edit | None = None
) -> Path:
    """A copy of a golden folder (one safetensors file) with its config and tensors changed."""
    target.mkdir(parents=True)
    fields = json.loads((source / "config.json").read_text())
    weights = dict(read_safetensors(source / "model.safetensors"))
    if config:
        config(fields)
    if tensors:
        tensors(weights)
    (target / "config.json").write_text(json.dumps(fields))
    write_safetensors(target / "model.safetensors", weights)
    return target


def add_prefix(prefix: str) -> Edit:
    def edit(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    return edit
