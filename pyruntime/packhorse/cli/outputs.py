"""The outputs that a session of a model has, read from the spec alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from packhorse_weights.spec import stack_of, stem_of

Spec = Mapping[str, Any]


class Output(NamedTuple):
    """An output of a session. Its rows belong to a "token" or to a "sequence"."""

    per: str
    columns: int


def find_outputs(spec: Spec) -> dict[str, Output]:
    """Returns the outputs of a session of the model, except "predictions", which are planned on
    request."""
    heads, hidden = spec.get("heads", {}), int(stack_of(spec)["hidden_size"])
    outputs = {
        "hidden": Output("token", hidden),
        "embedding": Output("sequence", embedding_columns(spec)),
    }
    if "pooler" in heads:
        outputs["pooled"] = Output("sequence", hidden)
    if classifier := heads.get("classifier"):
        per = "token" if classifier["input"] == "tokens" else "sequence"
        outputs["logits"] = Output(per, len(classifier["labels"]))
    if heads.get("token_weights"):
        outputs["token_weights"] = Output("token", 1)
    if vectors := heads.get("vectors"):
        outputs["vectors"] = Output("token", int(vectors["size"]))
    if heads.get("masked_lm", {}).get("sparse"):
        outputs["sparse"] = Output("sequence", int(stem_of(spec)["vocab_size"]))
    return outputs


def embedding_columns(spec: Spec) -> int:
    embedding = spec.get("embedding", {})
    if dense := embedding.get("dense"):
        return int(dense[-1]["size"])
    pooling = embedding.get("pooling")
    return int(stack_of(spec)["hidden_size"]) * (len(pooling) if isinstance(pooling, list) else 1)
