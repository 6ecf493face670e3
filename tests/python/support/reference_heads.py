"""Expected results of the heads beside classifiers, by the spec: NumPy in float64."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import reference
from reference import Array
from reference_encoder import norm_by_name


def _dense(tensors: Mapping[str, Array], name: str, x: Array, activation: str = "none") -> Array:
    return reference.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"), activation)


def _dense_of(tensors: Mapping[str, Array], name: str, layer: Mapping[str, Any], x: Array) -> Array:
    out = _dense(tensors, name, x, layer.get("activation", "none"))
    if not layer.get("residual"):
        return out
    own = f"{name}.residual"
    return out + (_dense(tensors, own, x) if f"{own}.weight" in tensors else x)


def _unit(x: Array) -> Array:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def embedding(
    spec: Mapping[str, Any], tensors: Mapping[str, Array], hidden: Array, cu_seqlens: Any
) -> Array:
    options = spec["embedding"]
    poolings = options["pooling"]
    poolings = [poolings] if isinstance(poolings, str) else poolings
    x = np.concatenate([reference.pool(hidden, cu_seqlens, pooling) for pooling in poolings], 1)
    for i, layer in enumerate(options.get("dense", ())):
        x = _dense_of(tensors, f"embedding.dense.{i}", layer, x)
    x = _unit(x) if options["normalize"] else x
    return x * (np.diff(cu_seqlens) > 0)[:, None]


def predictions(spec: Mapping[str, Any], tensors: Mapping[str, Array], hidden: Array) -> Array:
    """Logits of a language model, for every row of `hidden`."""
    if (lm := spec["heads"].get("lm")) is not None:
        x = _dense(tensors, "lm.projection", hidden) if lm.get("projection") else hidden
        decoder = "embeddings.word" if lm.get("tied") else "lm.decoder.weight"
        x = reference.linear(x, tensors[decoder], tensors.get("lm.decoder.bias"))
        x, cap = x * lm.get("scale", 1), lm.get("soft_cap")
        return x if cap is None else cap * np.tanh(x / cap)
    x = _dense(tensors, "masked_lm.dense", hidden, spec["heads"]["masked_lm"]["activation"])
    return _dense(tensors, "masked_lm.decoder", norm_by_name(spec, tensors, "masked_lm.norm", x))


def sparse(logits: Array, cu_seqlens: Any, sum: bool = False, twice: bool = False) -> Array:
    weights = np.log1p(np.maximum(logits, 0))
    weights = np.log1p(weights) if twice else weights
    found = np.zeros((len(cu_seqlens) - 1, logits.shape[1]))
    for i, (begin, end) in enumerate(itertools.pairwise(cu_seqlens)):
        if end > begin:
            rows = weights[begin:end]
            found[i] = rows.sum(0) if sum else rows.max(0)
    return found


def outputs(
    spec: Mapping[str, Any],
    tensors: Mapping[str, Array],
    hidden: Any,
    cu_seqlens: Any,
    rows: Any,
) -> dict[str, Array]:
    """Every output that the spec has and that is made of `hidden` [T, hidden_size]."""
    hidden = np.asarray(hidden, np.float64)
    heads = spec.get("heads", {})
    found = {"embedding": embedding(spec, tensors, hidden, cu_seqlens)}
    if heads.get("token_weights"):
        found["token_weights"] = _dense(tensors, "token_weights", hidden, "relu")
    if "vectors" in heads:
        vectors = hidden
        for i, layer in enumerate(heads["vectors"].get("dense", ())):
            vectors = _dense_of(tensors, f"vectors.dense.{i}", layer, vectors)
        vectors = _dense_of(tensors, "vectors", heads["vectors"], vectors)
        found["vectors"] = _unit(vectors) if heads["vectors"].get("normalize", True) else vectors
    if "masked_lm" in heads or "lm" in heads:
        logits = predictions(spec, tensors, hidden)
        found["predictions"] = logits[rows]
        if heads.get("masked_lm", {}).get("sparse"):
            found["sparse"] = sparse(
                logits,
                cu_seqlens,
                heads["masked_lm"].get("sparse_pooling") == "sum",
                heads["masked_lm"].get("sparse_logs") == 2,
            )
    return found
