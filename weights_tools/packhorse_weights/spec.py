"""The spec of a model (docs/developer/spec.md): named stacks, whose layers are lists of blocks.

Most models have layers that are alike but for a window or a rotation. `from_layer` makes the spec
of such a model from one layer and what single layers have of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Spec = dict[str, Any]

FORMAT = 2
_STEM = (
    "vocab_size",
    "words",
    "embedding_size",
    "embedding_bias",
    "table_dtype",
    "embedding_scale",
    "type_vocab_size",
    "positions",
    "rows",
)
_STACK = ("residual_scales", "convolution")
# Fields of a description that end in stems, stacks and layers. All others stay at the top.
_MOVED = {
    *_STEM,
    *_STACK,
    "patches",
    "audio",
    "format",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "norm",
    "attention",
    "ffn",
    "ropes",
    "layers",
}


def stack_of(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stack whose hidden state the heads read; a document of format 1 itself, which has the
    sizes of its only one."""
    stacks: Mapping[str, Any] = spec.get("stacks", {"": spec})
    return next(reversed(stacks.values()))  # type: ignore[call-overload]


def stem_of(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stem of that stack: `vocab_size`, `type_vocab_size`, `positions` and others."""
    stack = stack_of(spec)
    stem: Mapping[str, Any] = stack.get("stem", stack)
    return stem


def word_table(spec: Mapping[str, Any]) -> str:
    """Name of the table of words that that stem reads, which may be the other stack's."""
    stacks: Mapping[str, Any] = spec.get("stacks", {})
    if len(stacks) < 2:
        return "embeddings.word"
    return f"{stem_of(spec).get('words', [*stacks][-1])}.embeddings.word"


def with_stem(spec: Spec, **fields: Any) -> Spec:
    """The spec with these fields in its stem. One that is malformed is given back as it is: the
    runtime refuses it by name."""
    if "stacks" not in spec:
        return spec | fields
    try:
        (name, stack), *_ = reversed(spec["stacks"].items())
        changed = {**stack, "stem": {**stack["stem"], **fields}}
    except (AttributeError, KeyError, TypeError, ValueError):
        return spec
    return spec | {"stacks": {**spec["stacks"], name: changed}}


def blocks_of(spec: Mapping[str, Any]) -> list[list[Spec]]:
    """The blocks of each layer of that stack."""
    return [layer["blocks"] for layer in stack_of(upgraded(spec)).get("layers", ())]


def weight_sets(spec: Mapping[str, Any], name: str | None = None) -> list[list[Spec]]:
    """The blocks of each set of weights of a stack, by its name; None: of that stack. Several
    layers of a model may use the weights of one."""
    sets: dict[int, list[Spec]] = {}
    spec = upgraded(spec)
    stack = stack_of(spec) if name is None else spec["stacks"][name]
    for i, layer in enumerate(stack.get("layers", ())):
        sets.setdefault(layer.get("weights", i), layer["blocks"])
    return [blocks for _, blocks in sorted(sets.items())]


def is_causal(spec: Mapping[str, Any]) -> bool:
    """True if tokens see none that follow, in all layers."""
    layers = blocks_of(spec)
    return bool(layers) and all(blocks[0].get("mask") == "causal" for blocks in layers)


def _attention(spec: Mapping[str, Any], own: Mapping[str, Any], ropes: Spec) -> Spec:
    fields = {
        name: value
        for name, value in spec["attention"].items()
        if name not in ("kind", "score_term", "rope")
    }
    heads = spec["num_heads"]
    block = {
        "kind": spec["attention"].get("kind", "self_attention"),
        "num_heads": heads,
        "num_kv_heads": spec.get("num_kv_heads", heads),
        "head_dim": spec.get("head_dim", spec["hidden_size"] // heads),
        **fields,
        "rope": own.get("rope", "global") if ropes else None,
        "window": own.get("window"),
    }
    if block["rope"] not in ropes:  # one that is the same as "global"
        block["rope"] = "global" if block["rope"] else None
    return {name: value for name, value in block.items() if value is not None}


def _feed_forward(spec: Mapping[str, Any], weights: int) -> Spec:
    fields = dict(spec["ffn"])
    kind, size = fields.pop("kind"), spec["intermediate_size"]
    if kind == "moe":
        router = {**fields.pop("router"), "takes_state": weights > 0}
        return {"kind": "moe", "size": size, **fields, "router": router}
    gated = {"gated": True} if kind == "gated" else {}
    return {"kind": "feed_forward", "size": size, **gated, **fields}


def from_layer(spec: Mapping[str, Any]) -> Spec:
    """The spec of a model whose layers are alike, of the description that a family gives.

    spec: at the top the fields of the stem, or `patches` or `audio` with those of such
        a stem;
        `hidden_size`, `num_layers`; of blocks `num_heads`, `num_kv_heads`, `head_dim`,
        `intermediate_size`, `attention`, `ffn`; `norm`; and what a spec has at the top.
        `attention` and `ffn` are the two blocks; `attention.rope` is the rotation "global", `ropes`
        has others by name. `layers` has for each layer its own `window`, `rope` (a name, or None)
        and `weights`, where it has any. A spec with `stacks` is given back.
    """
    if "stacks" in spec:
        return dict(spec)
    attention = spec.get("attention", {})
    norm = dict(spec.get("norm", {}))
    stem: Spec = {"kind": "tokens", **{name: spec[name] for name in _STEM if name in spec}}
    if "patches" in spec:
        stem = {"kind": "patches", **spec["patches"]}
    if "audio" in spec:
        stem = {"kind": "audio", **spec["audio"]}
    if norm and not norm.pop("embeddings", True):
        stem["norm"] = False
    first_attention, shared = norm.pop("first_attention", True), norm.pop("shared", False)
    layers: list[Spec] = []
    own: Sequence[Mapping[str, Any]] = spec.get("layers", [{}] * spec["num_layers"])
    ropes = {"global": attention["rope"]} if "rope" in attention else {}
    for name, rope in spec.get("ropes", {}).items():
        if rope != ropes["global"] and any(layer.get("rope") == name for layer in own):
            ropes[name] = rope
    for i, layer in enumerate(own):
        weights = layer.get("weights", i)
        attend, feed = _attention(spec, layer, ropes), _feed_forward(spec, weights)
        if weights == 0 and not first_attention:
            attend["norm"] = False
        if shared:
            feed["norm"] = "shared"
        layers.append(({} if weights == i else {"weights": weights}) | {"blocks": [attend, feed]})
    stack: Spec = {"hidden_size": spec["hidden_size"], "stem": stem}
    if norm:
        stack["norm"] = norm
    stack |= {name: spec[name] for name in _STACK if name in spec}
    if layers and "score_term" in attention:
        stack["score_term"] = attention["score_term"]
    if layers and ropes:
        stack["ropes"] = ropes
    stack["layers"] = layers
    name = "decoder" if attention.get("mask") == "causal" else "encoder"
    top = {field: value for field, value in spec.items() if field not in _MOVED}
    return {"format": FORMAT, **top, "stacks": {name: stack}}


# Fields of self attention that cross attention has as well.
_OF_CROSS = (
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "qkv_bias",
    "key_bias",
    "output_bias",
    "scale",
)
ENCODER, DECODER = "encoder", "decoder"


def from_encoder_decoder(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> Spec:
    """The spec of a model with an encoder and a decoder, of descriptions of both as `from_layer`
    takes them. The decoder's layers attend to the encoder's output as they do to themselves."""
    stacks: Spec = {}
    for name, described in ((ENCODER, encoder), (DECODER, decoder)):
        ((_, stack),) = from_layer(described)["stacks"].items()
        if "max_seqlen" in described:
            stack["max_seqlen"] = described["max_seqlen"]
        stacks[name] = stack
    for layer in stacks[DECODER]["layers"]:
        own = layer["blocks"][0]
        shared = {field: own[field] for field in _OF_CROSS if field in own}
        layer["blocks"].insert(1, {"kind": "cross_attention", "stack": ENCODER, **shared})
    return {"format": FORMAT, "family": encoder["family"], "stacks": stacks}


def has_encoder_decoder(spec: Mapping[str, Any]) -> bool:
    """True for a model with two stacks, the second of which attends to the first."""
    stacks = spec.get("stacks")
    return isinstance(stacks, Mapping) and len(stacks) > 1


def hears(spec: Mapping[str, Any]) -> bool:
    """True for a model of speech, whose encoder reads audio."""
    if not has_encoder_decoder(spec):
        return False
    first = next(iter(spec["stacks"].values()))
    return bool(first["stem"]["kind"] == "audio")


def sees(spec: Mapping[str, Any]) -> bool:
    """True for a model of images, which reads patches."""
    return stem_of(spec).get("kind") == "patches"


def longest_text(spec: Mapping[str, Any], last: bool = False) -> int:
    """The longest sequence that is read as a whole; of two stacks, that of the first, or of the
    `last`, which makes one."""
    stacks = spec.get("stacks", {})
    two = has_encoder_decoder(spec)
    stack = [*stacks.values()][-1 if last else 0] if two else stack_of(spec)
    limits = stack if two else spec
    positions = stack.get("stem", stack)["positions"]
    return int(limits.get("max_seqlen") or positions["count"] - positions.get("offset", 0))


def upgraded(spec: Mapping[str, Any]) -> Spec:
    """A valid spec in format 2. One of format 1 has lists of layers beside what all have."""
    if "stacks" in spec:
        return dict(spec)
    count = spec["num_layers"]
    described, attention, ffn = (
        dict(spec),
        dict(spec.get("attention", {})),
        dict(spec.get("ffn", {})),
    )
    weights = described.pop("layer_weights", range(count))
    local = attention.pop("local", {"layers": ()})
    rope = dict(attention.get("rope", {}))
    rotated = rope.pop("layers", range(count))
    of_local = {name: rope.pop(f"local_{name}", None) for name in ("theta", "factor")}
    of_local = {name: value for name, value in of_local.items() if value is not None}
    if rope:
        attention["rope"] = rope
    if any(rope.get(name, 1.0) != value for name, value in of_local.items()):
        local_rope = rope | of_local
        if local_rope.get("factor") == 1.0:
            del local_rope["factor"]
        described["ropes"] = {"local": local_rope}
    if (kind := attention.pop("kind", "full")) != "full":
        attention["kind"] = {"compressed": "cca"}[kind]
    if ffn.get("kind") == "mixture":
        ffn |= {"kind": "moe", "router": {"kind": "state", "size": ffn.pop("router_size")}}
    layers: list[Spec] = []
    for i, number in zip(range(count), weights, strict=True):
        own: Spec = {"weights": number}
        if i in local["layers"]:
            own["window"] = local["window"]
        if i not in rotated:
            own["rope"] = None
        elif i in local["layers"] and "ropes" in described:
            own["rope"] = "local"
        layers.append(own)
    described |= {"attention": attention, "ffn": ffn, "layers": layers}
    return from_layer(described)
