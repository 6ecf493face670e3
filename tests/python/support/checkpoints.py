"""Checkpoints that converter tests start from, and how they change them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors

GOLDEN = Path(__file__).parents[2] / "golden"
BERT = GOLDEN / "bert-gelu"
# A template for tiny causal language models, of any two tokens.
TOKENS = {"text": "{query}{document}", "yes": 61, "no": 7}
LOGIT_SCORE = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {
        "idx": 1,
        "name": "1",
        "path": "1_LogitScore",
        "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    },
]

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


def with_logit_score(model: str, folder: Path, yes: int, no: int | None) -> Path:
    """A copy of a golden model as sentence-transformers keeps rerankers."""
    shutil.copytree(GOLDEN / model, folder)
    (folder / "modules.json").write_text(json.dumps(LOGIT_SCORE))
    (folder / "1_LogitScore").mkdir()
    config = {"true_token_id": yes, "false_token_id": no, "module_input_name": "causal_logits"}
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(config))
    return folder
