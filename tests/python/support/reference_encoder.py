"""Results of a whole encoder by its spec: NumPy in float64, written for reading."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import reference
import reference_cca
from models import with_defaults
from packhorse_weights.spec import blocks_of, stack_of, stem_of, upgraded
from reference import Array


def norm_by_name(
    spec: Mapping[str, Any], tensors: Mapping[str, Array], name: str, x: Array
) -> Array:
    gamma, beta = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    if gamma is None:
        return x
    norm = stack_of(spec)["norm"]
    gamma = gamma + norm.get("gamma_offset", 0)
    if norm["kind"] == "rms":
        return reference.rms_norm(x, gamma, norm["eps"])
    return reference.layer_norm(x, gamma, beta, norm["eps"])


def _rotated(
    stack: Mapping[str, Any],
    block: Mapping[str, Any],
    tensors: Mapping[str, Array],
    x: Array,
    norm: str,
    at: Any,
) -> Array:
    """Queries or keys [T, H d] after each head's norm and rotation, where there are any."""
    head_dim = block["head_dim"]
    heads = x.reshape(len(x), x.shape[1] // head_dim, head_dim)
    if block.get("qk_norm"):
        gamma = tensors[norm] + stack["norm"].get("gamma_offset", 0)
        heads = reference.rms_norm(heads, gamma, stack["norm"]["eps"])
    if "rope" in block:
        rope = stack["ropes"][block["rope"]]
        dims = rope.get("dims", head_dim)
        if rope.get("interleaved"):  # scores are sums over columns in any order
            order = [*range(0, dims, 2), *range(1, dims, 2), *range(dims, head_dim)]
            heads = heads[..., order]
        if "frequencies" in rope:
            frequencies = np.array(rope["frequencies"], np.float32)
        else:
            frequencies = reference.rope_frequencies(rope["theta"], dims, rope.get("factor", 1))
        heads = reference.rotate(heads, at, frequencies) * rope.get("attention_factor", 1)
    return heads.reshape(x.shape)


def _compressed(
    num_heads: int,
    tensors: Mapping[str, Array],
    block: str,
    latents: list[Array],
    cu_seqlens: Any,
) -> list[Array]:
    """Queries and keys, not rotated, and values of their latents."""
    depthwise, grouped = (
        (tensors[f"{block}.{name}.weight"], tensors[f"{block}.{name}.bias"])
        for name in ("depthwise", "grouped")
    )
    values = [tensors.get(f"{block}.{name}.bias") for name in ("value", "delayed_value")]
    mixed = reference_cca.cca(
        np.concatenate(latents, axis=1),
        cu_seqlens,
        (depthwise[0][:, 0], depthwise[1]),
        grouped,
        tensors[f"{block}.temperature"],
        num_heads,
        first_values=None if values[0] is None else np.concatenate(values),
    )
    return np.split(mixed, np.cumsum([part.shape[1] for part in latents])[:-1], axis=1)


def _mixture(
    spec: Mapping[str, Any],
    moe: Mapping[str, Any],
    tensors: Mapping[str, Array],
    block: str,
    y: Array,
    state: Any,
) -> tuple[Array, Array]:
    """Results of the chosen experts, and the router's state."""

    def dense(name: str, x: Array, activation: str = "none") -> Array:
        weight, bias = (tensors.get(f"{block}.router.{name}.{part}") for part in ("weight", "bias"))
        return reference.linear(x, weight, bias, activation)

    own = dense("down", y)
    scale = tensors.get(f"{block}.router.state_scale")
    state = own if scale is None else own + scale * state
    inner = norm_by_name(spec, tensors, f"{block}.router.norm", state)
    logits = dense("output", dense("second", dense("first", inner, "gelu"), "gelu"))
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    chosen = (p + tensors[f"{block}.router.balance"]).argmax(-1)  # the first of equal ones
    out = np.zeros(y.shape)
    for e in range(moe["experts"]):
        rows = chosen == e
        gate, up = np.split(tensors[f"{block}.experts.gate_up"][e], 2)
        activation = moe["activation"]
        x = reference.linear(y[rows], gate, None, activation) * reference.linear(y[rows], up)
        out[rows] = p[rows, e, None] * reference.linear(x, tensors[f"{block}.experts.down"][e])
    return out, state


def _scaled(tensors: Mapping[str, Array], block: str, x: Array, residual: Array) -> Array:
    """x + residual, each shifted and scaled where the model does so."""
    if f"{block}.output_scale" not in tensors:
        return x + residual
    x, residual = (
        (of + tensors[f"{block}.{name}_shift"]) * tensors[f"{block}.{name}_scale"]
        for name, of in (("output", x), ("residual", residual))
    )
    return x + residual


def _convolution(
    convolution: Mapping[str, Any], tensors: Mapping[str, Array], x: Array, cu_seqlens: Any
) -> Array:
    """Over neighbouring tokens of a sequence, with zeros beyond its ends."""
    width = convolution["width"]
    total = np.zeros(x.shape) + tensors["convolution.bias"]
    for begin, end in itertools.pairwise(cu_seqlens):
        around = np.pad(x[begin:end], ((width // 2, width // 2), (0, 0)))
        for at in range(width if end > begin else 0):
            rows = around[at : at + end - begin]
            total[begin:end] += rows @ tensors["convolution.weight"][:, :, at].T
    return reference.ACTIVATIONS[convolution["activation"]](total)


class Exact:
    """Arithmetic at the places of an encoder where a runtime may round: nothing is rounded."""

    def dense(self, name: str, x: Array, weight: Array, bias: Any, activation: str) -> Array:
        """A dense layer, by the name of its tensors."""
        return reference.linear(x, weight, bias, activation)

    def residual(self, x: Array) -> Array:
        """Rows that are kept between layers: the residual stream, and the outputs of norms."""
        return x

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        cu_seqlens: Any,
        heads: int,
        kv_heads: int,
        **options: Any,
    ) -> Array:
        """Attention of queries and keys that have their positions."""
        return reference.attention(q, k, v, cu_seqlens, cu_seqlens, heads, kv_heads, **options)


def _counted(padding: int, ids: Any, cu_seqlens: Any) -> Array:
    """Positions that skip padding, which itself is at -1."""
    at = np.full(len(ids), -1)
    for begin, end in itertools.pairwise(cu_seqlens):
        kept = begin + np.flatnonzero(np.asarray(ids[begin:end]) != padding)
        at[kept] = np.arange(len(kept))
    return at


def _last_kept(padding: int, hidden: Array, ids: Any, cu_seqlens: Any) -> Array:
    """The last row of each sequence that is not of padding, or else the first."""
    out = np.zeros((len(cu_seqlens) - 1, hidden.shape[1]))
    for b, (begin, end) in enumerate(itertools.pairwise(cu_seqlens)):
        kept = np.flatnonzero(np.asarray(ids[begin:end]) != padding)
        if end > begin:
            out[b] = hidden[begin + (kept[-1] if len(kept) else 0)]
    return out


def encoder(
    spec: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Any,
    cu_seqlens: Any,
    type_ids: Any = None,
    position_ids: Any = None,
    arithmetic: Exact | None = None,
) -> Array:
    """The last hidden state: post-norm (Vaswani et al. 2017; BERT) or pre-norm."""
    spec = upgraded(with_defaults(spec))
    stack, stem = stack_of(spec), stem_of(spec)
    placement = stack["norm"]["placement"]
    pre = placement != "post"
    by = arithmetic or Exact()

    def dense(name: str, x: Array, activation: str = "none") -> Array:
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        return by.dense(name, x, weight, bias, activation)

    def norm(name: str, x: Array) -> Array:
        return by.residual(norm_by_name(spec, tensors, name, x))

    if position_ids is None and "padding_id" in stem["positions"]:
        position_ids = _counted(stem["positions"]["padding_id"], ids, cu_seqlens)
    at = reference.positions(cu_seqlens) if position_ids is None else np.asarray(position_ids)
    word, position, type_table = (
        tensors.get(f"embeddings.{name}") for name in ("word", "position", "type")
    )
    word = word * stem.get("embedding_scale", 1)
    offset = stem["positions"].get("offset", 0)
    late = stem["positions"].get("after_projection")
    x = reference.embed(
        ids,
        cu_seqlens,
        word,
        None if late else position,
        type_table,
        type_ids,
        position_ids,
        offset,
    )
    x = norm("embeddings.norm", x)
    if "embedding_size" in stem:
        x = dense("embeddings.projection", x)
    if late:
        x = x + position[at + offset]

    if stack.get("residual_scales"):
        x = (x + tensors["embeddings.shift"]) * tensors["embeddings.scale"]
    entered = x
    state: Any = None  # state of routers, from layer to layer
    shared: dict[str, Any] = {}  # options of attention in all layers
    term = stack.get("score_term", {})
    if term.get("kind") == "alibi":
        shared["alibi_slopes"] = reference.alibi_slopes(blocks_of(spec)[0][0]["num_heads"])
    if term.get("kind") == "bucketed":
        shared["bucket_table"] = tensors["relative_bias"]
        shared["max_distance"] = term["max_distance"]
    relative = term if term.get("kind") == "disentangled" else {}
    if relative:
        shared |= {"buckets": relative.get("buckets", 0), "max_distance": relative["max_distance"]}
        table = tensors["relative_embeddings"]
        if relative["norm"]:
            parameters = (tensors[f"relative_norm.{name}"] for name in ("weight", "bias"))
            table = reference.layer_norm(table, *parameters, stack["norm"]["eps"])
    for i, layer in enumerate(stack["layers"]):
        index = layer.get("weights", i)
        attention, feed_forward = layer["blocks"]
        options = dict(shared)
        if "scale" in attention:
            options["scale"] = attention["scale"]
        elif relative:
            terms = 1 + relative["content_to_position"] + relative["position_to_content"]
            options["scale"] = (terms * attention["head_dim"]) ** -0.5
        causal = attention["mask"] == "causal"
        window = attention.get("window", -1)
        block = f"layers.{index}.attention"
        entering = x
        y = norm(f"{block}.norm", x) if pre else x
        q, k, v = (dense(f"{block}.{name}", y) for name in ("query", "key", "value"))
        if attention["kind"] == "cca":
            v = np.concatenate([v, dense(f"{block}.delayed_value", y)], axis=1)
            q, k, v = _compressed(attention["num_heads"], tensors, block, [q, k, v], cu_seqlens)
        q = _rotated(stack, attention, tensors, q, f"{block}.query_norm.weight", at)
        k = _rotated(stack, attention, tensors, k, f"{block}.key_norm.weight", at)
        own = "" if relative.get("shared_projections") else "position_"
        if relative.get("content_to_position"):
            options["position_keys"] = dense(f"{block}.{own}key", table)
        if relative.get("position_to_content"):
            options["position_queries"] = dense(f"{block}.{own}query", table)
        context = by.attention(
            q, k, v, cu_seqlens, attention["num_heads"], attention["num_kv_heads"],
            causal=causal, window=(window, -1 if causal else window), **options,
        )  # fmt: skip
        given = norm(f"{block}.output_norm", dense(f"{block}.output", context))
        x = by.residual(_scaled(tensors, block, given, x))
        x = x if pre else norm(f"{block}.norm", x)
        block = f"layers.{index}.ffn"
        if feed_forward.get("norm") != "shared":
            y = norm(f"{block}.norm", entering if placement == "parallel" else x) if pre else x
        activation = feed_forward["activation"]
        if feed_forward["kind"] == "moe":
            given, state = _mixture(spec, feed_forward, tensors, block, y, state)
        else:
            gated = feed_forward.get("gated", False)
            inner = dense(f"{block}.up", y, "none" if gated else activation)
            if gated:
                inner = dense(f"{block}.gate", y, activation) * inner
            given = norm(f"{block}.output_norm", dense(f"{block}.down", inner))
        x = by.residual(_scaled(tensors, block, given, x))
        x = x if pre else norm(f"{block}.norm", x)
        if i == 0 and "convolution" in stack:
            added = _convolution(stack["convolution"], tensors, entered, cu_seqlens)
            x = norm("convolution.norm", x + added)
    return norm("final_norm", x) if pre else x


def pooler(tensors: Mapping[str, Array], hidden: Array, cu_seqlens: Any) -> Array:
    """tanh of a dense layer on each sequence's first token; zeros for an empty sequence."""
    first = reference.pool(hidden, cu_seqlens, "cls")
    out = reference.linear(first, tensors["pooler.weight"], tensors["pooler.bias"], "tanh")
    return out * (np.diff(cu_seqlens) > 0)[:, None]


def classifier(
    spec: Mapping[str, Any], tensors: Mapping[str, Array], hidden: Array, ids: Any, cu_seqlens: Any
) -> Array:
    """Logits [T, num_labels] or [B, num_labels]; zeros for an empty sequence."""
    head = spec["heads"]["classifier"]
    if head["input"] == "tokens":
        x = hidden
    elif head["input"] == "pooler":
        x = pooler(tensors, hidden, cu_seqlens)
    elif "padding_id" in head:
        x = _last_kept(head["padding_id"], hidden, ids, cu_seqlens)
    else:
        x = reference.pool(hidden, cu_seqlens, head["input"])
    if "dense" in head:
        bias = tensors.get("classifier.dense.bias")
        x = reference.linear(
            x, tensors["classifier.dense.weight"], bias, head["dense"]["activation"]
        )
        x = norm_by_name(spec, tensors, "classifier.norm", x)
    out = reference.linear(x, tensors["classifier.weight"], tensors.get("classifier.bias"))
    return out if head["input"] == "tokens" else out * (np.diff(cu_seqlens) > 0)[:, None]
