"""Layers after pooling, of models whose pooling is computed outside of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packhorse.result import FloatArray

if TYPE_CHECKING:
    from packhorse_weights.checkpoint import ModelFiles


class DenseLayer(NamedTuple):
    """A layer after pooling. residual: the matrix through which its input is added; None: the input
    itself is, where `adds` is true."""

    weight: FloatArray
    bias: FloatArray | None
    activation: Any
    adds: bool
    residual: FloatArray | None


def read_layers(model: ModelFiles) -> list[DenseLayer]:
    """The layers after pooling of a model, in float32."""
    from packhorse_weights.formats.safetensors import read_safetensors
    from packhorse_weights.tensor import cast

    held: Mapping[str, Any] = model.tensors or {}
    if model.tensors is None:
        files = [read_safetensors(path) for path in model.safetensors]
        whole = {name: tensor for file in files for name, tensor in file.items()}
        held = {ours: whole[theirs] for ours, theirs in model.names.items()}

    def matrix(name: str) -> FloatArray | None:
        found = held.get(name)
        return None if found is None else np.array(cast(found, "float32", name).data)

    layers = []
    for i, dense in enumerate(model.spec.get("embedding", {}).get("dense", ())):
        name = f"embedding.dense.{i}"
        weight = matrix(f"{name}.weight")
        assert weight is not None
        bias, residual = matrix(f"{name}.bias"), matrix(f"{name}.residual.weight")
        adds = dense.get("residual", False)
        layers.append(DenseLayer(weight, bias, dense.get("activation", "none"), adds, residual))
    return layers
