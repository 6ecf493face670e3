"""Models with two towers, an encoder of images and one of texts, each of which is a model of its
own: which of them is meant, and what their embeddings have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packhorse_weights.architectures.base import Pooled
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.tensor import Tensor, cast

TOWERS = ("vision", "text")
_PARTS = {
    "clip": "clip_{tower}_model",
    "chinese_clip": "chinese_clip_{tower}_model",
    "siglip": "siglip_{tower}_model",
    "siglip2": "siglip2_{tower}_model",
}
# Models of pages: the text tower has to know how the other one makes its rows.
_PAGES = {
    "colmodernvbert": "colmodernvbert_{tower}",
    "colpali": "colpali_{tower}",
    "idefics3": "colidefics3_{tower}",
}
# Some of them keep the config of their language model that sees in a section of its own.
_INNER = "vlm_config"
_SHARED = ("image_token_id", "image_token_index", "pixel_shuffle_factor", "scale_factor")


def check_tower(tower: str | None) -> None:
    if tower not in (None, *TOWERS):
        raise CheckpointError(f"tower is {tower!r:.80}, expected one of {', '.join(TOWERS)}")


def tower_part(config: Config, tower: str | None) -> Config:
    """The config of one tower of a model with two, by default that of images. Other configs are
    given back as they are."""
    whole = str(config.fields.get("model_type"))
    named = {**_PARTS, **_PAGES}.get(whole)
    if named is None:
        return config
    tower = tower or "vision"
    where, inner = config.where, config
    if _INNER in config.fields:
        where, inner = f"{where}: {_INNER}", config.section(_INNER)
    part = inner.section(f"{tower}_config").fields
    outer = {
        name: config.fields[name]
        for name in ("architectures", "id2label", "problem_type", "initializer_factor")
        if name in config.fields
    }
    if whole in _PAGES:
        outer["vision_config"] = inner.section("vision_config").fields
        outer |= {name: inner.fields.get(name) for name in _SHARED}
    model_type = named.replace("{tower}", tower)
    return Config({**part, **outer, "model_type": model_type}, f"{where}: {tower}_config")


def _number(tensors: Mapping[str, Tensor], name: str, default: float) -> float:
    tensor = tensors.get(name)
    if tensor is None or tensor.size != 1:
        return default
    return float(cast(tensor, "float32", name).data.reshape(-1)[0])


def similarity(tensors: Mapping[str, Tensor], score: str) -> dict[str, Any]:
    """`similarity` of the spec, where the checkpoint has both towers."""
    if "logit_scale" not in tensors:
        return {}
    scale = float(np.exp(min(_number(tensors, "logit_scale", 0.0), 50.0)))
    bias = _number(tensors, "logit_bias", 0.0)
    return {"similarity": {"scale": scale, "bias": bias, "score": score}}


def projected(
    pooling: str, why: str, layer: str, tensors: Mapping[str, Tensor], fields: dict[str, Any]
) -> Pooled:
    """The embedding by a pooling and, where the checkpoint has it, a dense layer. That of a model
    with both towers has length 1."""
    embedding: dict[str, Any] = {"pooling": pooling, "normalize": bool(fields)}
    names = {}
    if (weight := tensors.get(f"{layer}.weight")) is not None and weight.shape:
        has_bias = f"{layer}.bias" in tensors
        embedding["dense"] = [{"size": weight.shape[0], "bias": has_bias}]
        names = {"embedding.dense.0": layer}
    return Pooled(embedding, why, names, fields=fields)
