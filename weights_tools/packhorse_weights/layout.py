"""Names and shapes of the tensors that a spec asks for (docs/developer/tensors.md)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from packhorse_weights.spec import Spec, stack_of, stem_of, upgraded, weight_sets

Shapes = dict[str, tuple[int, ...]]

# Layers that a file may hold in one tensor, concatenated by rows.
STACKS = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.qkv_by_head": ("attention.query", "attention.key", "attention.value"),
    "ffn.gate_up": ("ffn.gate", "ffn.up"),
    "ffn.up_gate": ("ffn.up", "ffn.gate"),
}

_AUDIO_WIDTH = 3  # frames that a convolution of a stem of audio sees

# Ending, in place of `.weight`, of the name of a layer that a file stores as [in, out].
TRANSPOSED = ".weight_transposed"


class _Layer:
    """The tensors of one set of weights.

    shapes: dense layers with their shapes [out, in], and norms with their shapes [size].
    bias: whether each of them has one.
    bare: tensors that are neither.
    source: columns of the rows that cross attention reads.
    """

    def __init__(self, stack: Spec, blocks: list[Spec], source: int) -> None:
        self.shapes: Shapes = {}
        self.bias: dict[str, bool] = {}
        self.bare: Shapes = {}
        self._stack = stack
        self._hidden, self._source = stack["hidden_size"], source
        norm = stack["norm"]
        self._norm_bias = norm.get("bias", norm["kind"] == "layer")
        for block in blocks:
            attends = block["kind"] in ("self_attention", "cca", "cross_attention")
            name = "attention" if attends else "ffn"
            if block["kind"] == "cross_attention":
                name = "cross_attention"
                self._add_cross_attention(block)
            elif attends:
                self._add_attention(block)
                self._add_scales(name)
            else:
                self._add_scales(name)
                (self._add_moe if block["kind"] == "moe" else self._add_feed_forward)(block)
            if block.get("norm", True) is True:
                self._add(f"{name}.norm", (self._hidden,), self._norm_bias)
            if norm["placement"] == "both":
                self._add(f"{name}.output_norm", (self._hidden,), self._norm_bias)

    def _add_scales(self, name: str) -> None:
        if self._stack.get("residual_scales", False):
            for part in ("output_scale", "output_shift", "residual_scale", "residual_shift"):
                self.bare[f"{name}.{part}"] = (self._hidden,)

    def _add(self, name: str, shape: tuple[int, ...], bias: bool) -> None:
        self.shapes[name], self.bias[name] = shape, bias

    def _add_attention(self, block: Spec) -> None:
        hidden, head_dim = self._hidden, block["head_dim"]
        queries, keys = block["num_heads"] * head_dim, block["num_kv_heads"] * head_dim
        qkv_bias: bool = block.get("qkv_bias", True)
        key_bias: bool = block.get("key_bias", qkv_bias)
        compressed = block["kind"] == "cca"
        self._add("attention.query", (queries, hidden), qkv_bias)
        self._add("attention.key", (keys, hidden), key_bias)
        self._add("attention.value", (keys // 2 if compressed else keys, hidden), qkv_bias)
        if compressed:
            mixed = queries + keys
            self._add("attention.delayed_value", (keys // 2, hidden), qkv_bias)
            self._add("attention.depthwise", (mixed, 1, block["depthwise_width"]), True)
            self._add("attention.grouped", (mixed, head_dim, block["grouped_width"]), True)
            self.bare["attention.temperature"] = (block["num_kv_heads"],)
        term = self._stack.get("score_term", {})
        if term.get("kind") == "disentangled" and not term["shared_projections"]:
            if term["content_to_position"]:
                self._add("attention.position_key", (queries, hidden), key_bias)
            if term["position_to_content"]:
                self._add("attention.position_query", (queries, hidden), qkv_bias)
        if term.get("per_layer", False):
            self.bare["attention.relative_bias"] = (_table_rows(term), block["num_heads"])
        if block.get("qk_norm", False):
            self._add("attention.query_norm", (head_dim,), False)
            self._add("attention.key_norm", (head_dim,), False)
        self._add("attention.output", (hidden, queries), block.get("output_bias", True))

    def _add_cross_attention(self, block: Spec) -> None:
        queries, keys = (block[name] * block["head_dim"] for name in ("num_heads", "num_kv_heads"))
        qkv_bias: bool = block.get("qkv_bias", True)
        key_bias: bool = block.get("key_bias", qkv_bias)
        self._add("cross_attention.query", (queries, self._hidden), qkv_bias)
        self._add("cross_attention.key", (keys, self._source), key_bias)
        self._add("cross_attention.value", (keys, self._source), qkv_bias)
        output_bias = block.get("output_bias", True)
        self._add("cross_attention.output", (self._hidden, queries), output_bias)

    def _add_feed_forward(self, block: Spec) -> None:
        hidden, inner, up_bias = self._hidden, block["size"], block.get("up_bias", True)
        if block.get("gated", False):
            self._add("ffn.gate", (inner, hidden), up_bias)
        self._add("ffn.up", (inner, hidden), up_bias)
        self._add("ffn.down", (hidden, inner), block.get("down_bias", True))

    def _add_moe(self, block: Spec) -> None:
        hidden, inner, experts = self._hidden, block["size"], block["experts"]
        router, size = block["router"], block["router"]["size"]
        self._add("ffn.router.down", (size, hidden), True)
        self._add("ffn.router.norm", (size,), self._norm_bias)
        self._add("ffn.router.first", (size, size), True)
        self._add("ffn.router.second", (size, size), True)
        self._add("ffn.router.output", (experts + 1, size), False)
        if router["takes_state"]:
            self.bare["ffn.router.state_scale"] = (size,)
        self.bare["ffn.router.balance"] = (experts + 1,)
        self.bare["ffn.experts.gate_up"] = (experts, 2 * inner, hidden)
        self.bare["ffn.experts.down"] = (experts, hidden, inner)


def _table_rows(term: Spec) -> int:
    """Rows of the table of a score term that has one of numbers."""
    if term.get("kind") == "grid":
        return int((2 * term["rows"] - 1) * (2 * term["columns"] - 1) + 3)
    return int(term["buckets"]) if term.get("kind") == "bucketed" else 0


def _add_layer(shapes: Shapes, name: str, weight: tuple[int, ...], bias: bool = True) -> None:
    shapes[f"{name}.weight"] = weight
    if bias:
        shapes[f"{name}.bias"] = weight[:1]


def _stack_shapes(
    spec: Spec, name: str, source: int, stacks: Collection[str], transposed: Collection[str]
) -> Shapes:
    """The tensors of a stack. source: columns of the stack that its cross attention reads."""
    stack, stem = dict(spec["stacks"][name]), spec["stacks"][name]["stem"]
    hidden: int = stack["hidden_size"]
    norm = stack.get("norm", {"kind": "layer", "placement": "post"})
    embedding: int = stem.get("embedding_size") or hidden
    norm_bias = norm.get("bias", norm["kind"] == "layer")
    shapes: Shapes = {}
    if stem["kind"] == "patches":
        _add_layer(shapes, "embeddings.patch", (hidden, stem["features"]), stem.get("bias", True))
        if (prefix := stem.get("prefix", 0)) > 0:
            shapes["embeddings.prefix"] = (prefix, hidden)
        if (grid := stem["positions"])["kind"] == "grid":
            shapes["embeddings.position"] = (grid["rows"] * grid["columns"], hidden)
    elif stem["kind"] == "audio":
        for i, columns in enumerate((stem["features"], hidden)):
            _add_layer(shapes, f"embeddings.convolution.{i}", (hidden, columns, _AUDIO_WIDTH))
    elif "words" not in stem:
        shapes["embeddings.word"] = (stem["vocab_size"], embedding)
    if stem["positions"]["kind"] == "learned":
        width = hidden if stem["positions"].get("after_projection", False) else embedding
        shapes["embeddings.position"] = (stem["positions"]["count"], width)
    if (rows := stem.get("rows")) is not None:
        _add_layer(shapes, "embeddings.rows", (hidden, rows["features"]), rows.get("bias", True))
    if stem.get("type_vocab_size", 0) > 0:
        shapes["embeddings.type"] = (stem["type_vocab_size"], embedding)
    layer = partial(_add_layer, shapes)
    if stack.get("residual_scales", False):
        shapes["embeddings.scale"] = shapes["embeddings.shift"] = (hidden,)
    if "norm" in stack and stem.get("norm", True):
        layer("embeddings.norm", (embedding,), norm_bias)
    if "embedding_size" in stem:
        layer("embeddings.projection", (hidden, embedding), stem.get("embedding_bias", True))
    sets = weight_sets(spec, name)
    score_term = stack.get("score_term", {})
    if _table_rows(score_term) > 0 and not score_term.get("per_layer", False):
        shapes["relative_bias"] = (_table_rows(score_term), sets[0][0]["num_heads"])
    if score_term.get("kind") == "disentangled":
        span = score_term.get("buckets", 0) or score_term["max_distance"]
        shapes["relative_embeddings"] = (2 * span, hidden)
        if score_term["norm"]:
            layer("relative_norm", (hidden,))
    for i, blocks in enumerate(sets):
        own = _Layer(stack, blocks, source)
        parts, bias = own.shapes, own.bias
        for fused in stacks:
            rows = [parts.pop(part) for part in STACKS[fused]]
            whole = all(bias[part] for part in STACKS[fused])
            for part, shape in zip(STACKS[fused], rows, strict=True):
                if bias[part] and not whole:  # those of the single layers
                    shapes[f"layers.{i}.{part}.bias"] = shape[:1]
            parts = {fused: (sum(row[0] for row in rows), hidden), **parts}
            bias[fused] = whole
        for part, shape in parts.items():
            layer(f"layers.{i}.{part}", shape, bias[part])
            if part in transposed:
                shapes.pop(f"layers.{i}.{part}.weight")
                shapes[f"layers.{i}.{part}{TRANSPOSED}"] = shape[::-1]
        for part, shape in own.bare.items():
            shapes[f"layers.{i}.{part}"] = shape
    if "convolution" in stack:
        layer("convolution", (hidden, hidden, stack["convolution"]["width"]))
        layer("convolution.norm", (hidden,), norm_bias)
    if norm["placement"] != "post" and norm.get("final", True):
        layer("final_norm", (hidden,), norm_bias)
    return shapes


def weight_shapes(
    spec: Spec, stacks: Collection[str] = (), transposed: Collection[str] = ()
) -> Shapes:
    """Our tensor names, in the order of docs/developer/tensors.md, with their shapes. Of several
    stacks, those of each begin with its name.

    stacks: which of STACKS the file has instead of the single layers.
    transposed: which layers of the blocks, such as `attention.qkv`, it stores as [in, out].
    """
    spec = upgraded(spec)
    shapes: Shapes = {}
    source = 0
    for name, one in spec["stacks"].items():
        prefix = f"{name}." if len(spec["stacks"]) > 1 else ""
        found = _stack_shapes(spec, name, source, stacks, transposed)
        shapes |= {prefix + own: shape for own, shape in found.items()}
        source = one["hidden_size"]
    return shapes | _head_shapes(spec)


def _head_shapes(spec: Spec) -> Shapes:
    stack, stem = dict(stack_of(spec)), stem_of(spec)
    hidden: int = stack["hidden_size"]
    norm = stack.get("norm", {"kind": "layer", "placement": "post"})
    embedding: int = stem.get("embedding_size") or hidden
    norm_bias = norm.get("bias", norm["kind"] == "layer")
    shapes: Shapes = {}
    layer = partial(_add_layer, shapes)

    def dense_layers(layers: list[tuple[str, Spec]], before: int) -> None:
        for name, dense in layers:
            layer(name, (dense["size"], before), dense.get("bias", True))
            if dense.get("residual", False) and dense["size"] != before:
                layer(f"{name}.residual", (dense["size"], before), False)
            before = dense["size"]

    if "pooler" in spec.get("heads", {}):
        layer("pooler", (hidden, hidden))
    if (classifier := spec.get("heads", {}).get("classifier")) is not None:
        if (dense := classifier.get("dense")) is not None:
            layer("classifier.dense", (hidden, hidden), dense.get("bias", True))
            if dense.get("norm", False):
                layer("classifier.norm", (hidden,), norm_bias)
        read = classifier["input"]
        if isinstance(read, list) and classifier.get("norm", False):
            layer("classifier.norm", (hidden,), norm_bias)
        columns = hidden * (len(read) if isinstance(read, list) else 1)
        layer("classifier", (len(classifier["labels"]), columns), classifier.get("bias", True))
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
        layer("masked_lm.decoder", (stem["vocab_size"], embedding), decoder_bias)
    if (lm := spec.get("heads", {}).get("lm")) is not None:
        if lm.get("projection", False):
            layer("lm.projection", (embedding, hidden), False)
        if not lm.get("tied", False):
            shapes["lm.decoder.weight"] = (stem["vocab_size"], embedding)
        if lm.get("bias", False):
            shapes["lm.decoder.bias"] = (stem["vocab_size"],)
    options = spec.get("embedding", {})
    probe = spec.get("heads", {}).get("probe")
    if probe is not None and options.get("pooling") == "probe":
        shapes["probe.query"] = (hidden,)
        for name in ("key", "value", "output"):
            layer(f"probe.{name}", (hidden, hidden))
        layer("probe.norm", (hidden,), norm_bias)
        layer("probe.up", (probe["size"], hidden))
        layer("probe.down", (hidden, probe["size"]))
    if options.get("norm", False):
        layer("embedding.norm", (hidden,), norm_bias)
    poolings = options.get("pooling")
    width = hidden * (len(poolings) if isinstance(poolings, list) else 1)
    layers = [(f"embedding.dense.{i}", one) for i, one in enumerate(options.get("dense", ()))]
    dense_layers(layers, width)
    return shapes
