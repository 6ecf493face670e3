"""Names and shapes of the tensors that a spec asks for (docs/developer/tensors.md)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Spec = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

# Layers that a file may hold in one tensor, concatenated by rows.
STACKS = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.qkv_by_head": ("attention.query", "attention.key", "attention.value"),
    "ffn.gate_up": ("ffn.gate", "ffn.up"),
    "ffn.up_gate": ("ffn.up", "ffn.gate"),
}

# Ending, in place of `.weight`, of the name of a layer that a file stores as [in, out].
TRANSPOSED = ".weight_transposed"


def num_weight_sets(spec: Spec) -> int:
    """The number of distinct layers. Several layers of a model may use the weights of one."""
    return 1 + max(spec.get("layer_weights", range(spec["num_layers"])), default=-1)


def _layer_shapes(spec: Spec, first: bool) -> tuple[Shapes, dict[str, bool]]:
    """The dense layers of one layer with their shapes [out, in], the set of those without bias, and
    the norms with their shapes [size]."""
    hidden, inner = spec["hidden_size"], spec["intermediate_size"]
    queries = spec["num_heads"] * spec["head_dim"]
    keys = spec["num_kv_heads"] * spec["head_dim"]
    attention, ffn, norm = spec["attention"], spec["ffn"], spec["norm"]
    qkv_bias, up_bias = attention.get("qkv_bias", True), ffn.get("up_bias", True)
    norm_bias = norm.get("bias", norm["kind"] == "layer")
    shapes: Shapes = {
        "attention.query": (queries, hidden),
        "attention.key": (keys, hidden),
        "attention.value": (keys, hidden),
    }
    key_bias = attention.get("key_bias", qkv_bias)
    bias = dict.fromkeys(shapes, qkv_bias) | {"attention.key": key_bias}

    def add(name: str, shape: tuple[int, ...], has_bias: bool) -> None:
        shapes[name], bias[name] = shape, has_bias

    if attention.get("kind") == "compressed":
        mixed, head_dim = queries + keys, spec["head_dim"]
        add("attention.value", (keys // 2, hidden), qkv_bias)
        add("attention.delayed_value", (keys // 2, hidden), qkv_bias)
        add("attention.depthwise", (mixed, 1, attention["depthwise_width"]), True)
        add("attention.grouped", (mixed, head_dim, attention["grouped_width"]), True)
    term = attention.get("score_term", {})
    if term.get("kind") == "disentangled" and not term["shared_projections"]:
        if term["content_to_position"]:
            add("attention.position_key", (queries, hidden), key_bias)
        if term["position_to_content"]:
            add("attention.position_query", (queries, hidden), qkv_bias)
    if attention.get("qk_norm", False):
        add("attention.query_norm", (spec["head_dim"],), False)
        add("attention.key_norm", (spec["head_dim"],), False)
    add("attention.output", (hidden, queries), attention.get("output_bias", True))
    if not first or norm.get("first_attention", True):
        add("attention.norm", (hidden,), norm_bias)
    if norm["placement"] == "both":
        add("attention.output_norm", (hidden,), norm_bias)
    if ffn["kind"] == "mixture":
        size = ffn["router_size"]
        add("ffn.router.down", (size, hidden), True)
        add("ffn.router.norm", (size,), norm_bias)
        add("ffn.router.first", (size, size), True)
        add("ffn.router.second", (size, size), True)
        add("ffn.router.output", (ffn["experts"] + 1, size), False)
    else:
        if ffn["kind"] == "gated":
            add("ffn.gate", (inner, hidden), up_bias)
        add("ffn.up", (inner, hidden), up_bias)
        add("ffn.down", (hidden, inner), ffn.get("down_bias", True))
    if not norm.get("shared", False):
        add("ffn.norm", (hidden,), norm_bias)
    if norm["placement"] == "both":
        add("ffn.output_norm", (hidden,), norm_bias)
    return shapes, bias


def _bare_shapes(spec: Spec, first: bool) -> Shapes:
    """The tensors of one layer that are no dense layers and no norms."""
    hidden, inner, ffn = spec["hidden_size"], spec["intermediate_size"], spec["ffn"]
    shapes: Shapes = {}
    if spec["attention"].get("kind") == "compressed":
        shapes["attention.temperature"] = (spec["num_kv_heads"],)
    if spec.get("residual_scales", False):
        for block in ("attention", "ffn"):
            for name in ("output_scale", "output_shift", "residual_scale", "residual_shift"):
                shapes[f"{block}.{name}"] = (hidden,)
    if ffn["kind"] == "mixture":
        if not first:
            shapes["ffn.router.state_scale"] = (ffn["router_size"],)
        shapes["ffn.router.balance"] = (ffn["experts"] + 1,)
        shapes["ffn.experts.gate_up"] = (ffn["experts"], 2 * inner, hidden)
        shapes["ffn.experts.down"] = (ffn["experts"], hidden, inner)
    return shapes


def weight_shapes(
    spec: Spec, stacks: Collection[str] = (), transposed: Collection[str] = ()
) -> Shapes:
    """Our tensor names, in the order of docs/developer/tensors.md, with their shapes.

    stacks: which of STACKS the file has instead of the single layers.
    transposed: which layers of the blocks, such as `attention.qkv`, it stores as [in, out].
    """
    hidden = spec["hidden_size"]
    norm = spec.get("norm", {"kind": "layer", "placement": "post", "embeddings": False})
    embedding: int = spec.get("embedding_size") or hidden
    norm_bias = norm.get("bias", norm["kind"] == "layer")
    shapes: Shapes = {"embeddings.word": (spec["vocab_size"], embedding)}
    if spec["positions"]["kind"] == "learned":
        width = hidden if spec["positions"].get("after_projection", False) else embedding
        shapes["embeddings.position"] = (spec["positions"]["count"], width)
    if spec.get("type_vocab_size", 0) > 0:
        shapes["embeddings.type"] = (spec["type_vocab_size"], embedding)

    def layer(name: str, weight: tuple[int, ...], bias: bool = True) -> None:
        shapes[f"{name}.weight"] = weight
        if bias:
            shapes[f"{name}.bias"] = weight[:1]

    def dense_layers(layers: list[tuple[str, Spec]], before: int) -> None:
        for name, dense in layers:
            layer(name, (dense["size"], before), dense.get("bias", True))
            if dense.get("residual", False) and dense["size"] != before:
                layer(f"{name}.residual", (dense["size"], before), False)
            before = dense["size"]

    if spec.get("residual_scales", False):
        shapes["embeddings.scale"] = shapes["embeddings.shift"] = (hidden,)
    if norm.get("embeddings", True):
        layer("embeddings.norm", (embedding,), norm_bias)
    if "embedding_size" in spec:
        layer("embeddings.projection", (hidden, embedding), spec.get("embedding_bias", True))
    score_term = spec.get("attention", {}).get("score_term", {})
    if score_term.get("kind") == "bucketed":
        shapes["relative_bias"] = (score_term["buckets"], spec["num_heads"])
    if score_term.get("kind") == "disentangled":
        span = score_term.get("buckets", 0) or score_term["max_distance"]
        shapes["relative_embeddings"] = (2 * span, hidden)
        if score_term["norm"]:
            layer("relative_norm", (hidden,))
    for i in range(num_weight_sets(spec)):
        parts, bias = _layer_shapes(spec, first=i == 0)
        for stack in stacks:
            rows = [parts.pop(part) for part in STACKS[stack]]
            whole = all(bias[part] for part in STACKS[stack])
            for part, shape in zip(STACKS[stack], rows, strict=True):
                if bias[part] and not whole:  # biases of the single layers
                    shapes[f"layers.{i}.{part}.bias"] = shape[:1]
            parts = {stack: (sum(row[0] for row in rows), hidden), **parts}
            bias[stack] = whole
        for part, shape in parts.items():
            layer(f"layers.{i}.{part}", shape, bias[part])
            if part in transposed:
                shapes.pop(f"layers.{i}.{part}.weight")
                shapes[f"layers.{i}.{part}{TRANSPOSED}"] = shape[::-1]
        for part, shape in _bare_shapes(spec, first=i == 0).items():
            shapes[f"layers.{i}.{part}"] = shape
    if "convolution" in spec:
        layer("convolution", (hidden, hidden, spec["convolution"]["width"]))
        layer("convolution.norm", (hidden,), norm_bias)
    if norm["placement"] != "post":
        layer("final_norm", (hidden,), norm_bias)
    if "pooler" in spec.get("heads", {}):
        layer("pooler", (hidden, hidden))
    if (classifier := spec.get("heads", {}).get("classifier")) is not None:
        if (dense := classifier.get("dense")) is not None:
            layer("classifier.dense", (hidden, hidden), dense.get("bias", True))
            if dense.get("norm", False):
                layer("classifier.norm", (hidden,), norm_bias)
        layer("classifier", (len(classifier["labels"]), hidden), classifier.get("bias", True))
    if spec.get("heads", {}).get("token_weights", False):
        layer("token_weights", (1, hidden))
    if (vectors := spec.get("heads", {}).get("vectors")) is not None:
        layers = [(f"vectors.dense.{i}", one) for i, one in enumerate(vectors.get("dense", ()))]
        dense_layers(layers, hidden)
        before = layers[-1][1]["size"] if layers else hidden
        dense_layers([("vectors", {"bias": False, **vectors})], before)
    if (masked_lm := spec.get("heads", {}).get("masked_lm")) is not None:
        layer("masked_lm.dense", (embedding, hidden), masked_lm.get("dense_bias", True))
        layer("masked_lm.norm", (embedding,), norm_bias)
        decoder_bias = masked_lm.get("decoder_bias", True)
        layer("masked_lm.decoder", (spec["vocab_size"], embedding), decoder_bias)
    if (lm := spec.get("heads", {}).get("lm")) is not None:
        if lm.get("projection", False):
            layer("lm.projection", (embedding, hidden), False)
        if not lm.get("tied", False):
            shapes["lm.decoder.weight"] = (spec["vocab_size"], embedding)
        if lm.get("bias", False):
            shapes["lm.decoder.bias"] = (spec["vocab_size"],)
    options = spec.get("embedding", {})
    poolings = options.get("pooling")
    width = hidden * (len(poolings) if isinstance(poolings, list) else 1)
    layers = [(f"embedding.dense.{i}", one) for i, one in enumerate(options.get("dense", ()))]
    dense_layers(layers, width)
    return shapes
