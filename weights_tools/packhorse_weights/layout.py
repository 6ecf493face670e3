"""Names and shapes of the tensors that a spec asks for (docs/weights.md)."""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]


def weight_shapes(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Our tensor names, in the order of docs/weights.md, with their shapes."""
    hidden, inner = spec["hidden_size"], spec["intermediate_size"]
    queries = spec["num_heads"] * spec["head_dim"]
    keys = spec["num_kv_heads"] * spec["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word": (spec["vocab_size"], hidden),
        "embeddings.position": (spec["positions"]["count"], hidden),
    }
    if spec["type_vocab_size"] > 0:
        shapes["embeddings.type"] = (spec["type_vocab_size"], hidden)

    def layer(name: str, *weight: int) -> None:
        shapes[f"{name}.weight"] = weight
        shapes[f"{name}.bias"] = weight[:1]

    layer("embeddings.norm", hidden)
    for i in range(spec["num_layers"]):
        layer(f"layers.{i}.attention.query", queries, hidden)
        layer(f"layers.{i}.attention.key", keys, hidden)
        layer(f"layers.{i}.attention.value", keys, hidden)
        layer(f"layers.{i}.attention.output", hidden, queries)
        layer(f"layers.{i}.attention.norm", hidden)
        layer(f"layers.{i}.ffn.up", inner, hidden)
        layer(f"layers.{i}.ffn.down", hidden, inner)
        layer(f"layers.{i}.ffn.norm", hidden)
    if "pooler" in spec.get("heads", {}):
        layer("pooler", hidden, hidden)
    return shapes
