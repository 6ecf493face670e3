"""Expected results of a whole encoder, by its spec: NumPy in float64, written for reading."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import reference
import reference_cca
from models import with_defaults
from reference import Array


def norm_by_name(
    spec: Mapping[str, Any], tensors: Mapping[str, Array], name: str, x: Array
) -> Array:
    gamma, beta = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    if gamma is None:
        return x
    gamma = gamma + spec["norm"].get("gamma_offset", 0)
    if spec["norm"]["kind"] == "rms":
        return reference.rms_norm(x, gamma, spec["norm"]["eps"])
    return reference.layer_norm(x, gamma, beta, spec["norm"]["eps"])


def _frequencies(spec: Mapping[str, Any], rope: Mapping[str, Any], local: bool) -> Array:
    if "frequencies" in rope:
        return np.array(rope["frequencies"], np.float32)
    theta = rope.get("local_theta", rope["theta"]) if local else rope["theta"]
    dims = rope.get("dims", spec["head_dim"])
    factor = rope.get("factor", 1)
    factor = rope.get("local_factor", factor) if local else factor
    return reference.rope_frequencies(theta, dims, factor)


def _rotated(
    spec: Mapping[str, Any], tensors: Mapping[str, Array], x: Array, norm: str, layer: int, at: Any
) -> Array:
    """Queries or keys [T, H d] after each head's norm and rotation, where there are any."""
    local = layer in spec["attention"].get("local", {}).get("layers", [])
    heads = x.reshape(len(x), x.shape[1] // spec["head_dim"], spec["head_dim"])
    if spec["attention"].get("qk_norm"):
        gamma = tensors[norm] + spec["norm"].get("gamma_offset", 0)
        heads = reference.rms_norm(heads, gamma, spec["norm"]["eps"])
    rope = spec["attention"].get("rope")
    if rope and layer in rope.get("layers", [layer]):
        dims = rope.get("dims", spec["head_dim"])
        if rope.get("interleaved"):  # scores are sums over columns in any order
            order = [*range(0, dims, 2), *range(1, dims, 2), *range(dims, spec["head_dim"])]
            heads = heads[..., order]
        heads = reference.rotate(heads, at, _frequencies(spec, rope, local))
        heads = heads * rope.get("attention_factor", 1)
    return heads.reshape(x.shape)


def _compressed(
    spec: Mapping[str, Any],
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
        spec["num_heads"],
        first_values=None if values[0] is None else np.concatenate(values),
    )
    return np.split(mixed, np.cumsum([part.shape[1] for part in latents])[:-1], axis=1)


def _mixture(
    spec: Mapping[str, Any], tensors: Mapping[str, Array], block: str, y: Array, state: Any
) -> tuple[Array, Array]:
    """Output of the chosen experts, and the router's state."""

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
    for e in range(spec["ffn"]["experts"]):
        rows = chosen == e
        gate, up = np.split(tensors[f"{block}.experts.gate_up"][e], 2)
        activation = spec["ffn"]["activation"]
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
    spec: Mapping[str, Any], tensors: Mapping[str, Array], x: Array, cu_seqlens: Any
) -> Array:
    """Over neighbouring tokens of a sequence, with zeros beyond its ends."""
    width = spec["convolution"]["width"]
    total = np.zeros(x.shape) + tensors["convolution.bias"]
    for begin, end in itertools.pairwise(cu_seqlens):
        around = np.pad(x[begin:end], ((width // 2, width // 2), (0, 0)))
        for at in range(width if end > begin else 0):
            rows = around[at : at + end - begin]
            total[begin:end] += rows @ tensors["convolution.weight"][:, :, at].T
    return reference.ACTIVATIONS[spec["convolution"]["activation"]](total)


class Exact:
    """Computations of an encoder where a runtime may round its results: here nothing is rounded."""

    def dense(self, name: str, x: Array, weight: Array, bias: Any, activation: str) -> Array:
        """A dense layer, by the name of its tensors."""
        return reference.linear(x, weight, bias, activation)

    def residual(self, x: Array) -> Array:
        """Values kept between layers: the residual stream, and the outputs of norms."""
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
    spec = with_defaults(spec)
    attention, ffn, placement = spec["attention"], spec["ffn"], spec["norm"]["placement"]
    pre = placement != "post"
    by = arithmetic or Exact()

    def dense(name: str, x: Array, activation: str = "none") -> Array:
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        return by.dense(name, x, weight, bias, activation)

    def norm(name: str, x: Array) -> Array:
        return by.residual(norm_by_name(spec, tensors, name, x))

    if position_ids is None and "padding_id" in spec["positions"]:
        position_ids = _counted(spec["positions"]["padding_id"], ids, cu_seqlens)
    at = reference.positions(cu_seqlens) if position_ids is None else np.asarray(position_ids)
    word, position, type_table = (
        tensors.get(f"embeddings.{name}") for name in ("word", "position", "type")
    )
    word = word * spec.get("embedding_scale", 1)
    offset = spec["positions"].get("offset", 0)
    late = spec["positions"].get("after_projection")
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
    if "embedding_size" in spec:
        x = dense("embeddings.projection", x)
    if late:
        x = x + position[at + offset]

    if spec.get("residual_scales"):
        x = (x + tensors["embeddings.shift"]) * tensors["embeddings.scale"]
    entered = x
    state: Any = None  # passed from one router to the next
    options: dict[str, Any] = {"causal": attention["mask"] == "causal"}
    if "scale" in attention:
        options["scale"] = attention["scale"]
    term = attention.get("score_term", {})
    if term.get("kind") == "alibi":
        options["alibi_slopes"] = reference.alibi_slopes(spec["num_heads"])
    if term.get("kind") == "bucketed":
        options["bucket_table"] = tensors["relative_bias"]
        options["max_distance"] = term["max_distance"]
    relative = term if term.get("kind") == "disentangled" else {}
    if relative:
        options |= {"buckets": relative.get("buckets", 0), "max_distance": relative["max_distance"]}
        terms = 1 + relative["content_to_position"] + relative["position_to_content"]
        options["scale"] = (terms * spec["head_dim"]) ** -0.5
        table = tensors["relative_embeddings"]
        if relative["norm"]:
            parameters = (tensors[f"relative_norm.{name}"] for name in ("weight", "bias"))
            table = reference.layer_norm(table, *parameters, spec["norm"]["eps"])
    for i, index in enumerate(spec.get("layer_weights", range(spec["num_layers"]))):
        local = i in attention.get("local", {}).get("layers", [])
        window = attention["local"]["window"] if local else -1
        right = window if attention["mask"] == "bidirectional" else -1
        block = f"layers.{index}.attention"
        entering = x
        y = norm(f"{block}.norm", x) if pre else x
        q, k, v = (dense(f"{block}.{name}", y) for name in ("query", "key", "value"))
        if attention.get("kind") == "compressed":
            v = np.concatenate([v, dense(f"{block}.delayed_value", y)], axis=1)
            q, k, v = _compressed(spec, tensors, block, [q, k, v], cu_seqlens)
        q = _rotated(spec, tensors, q, f"{block}.query_norm.weight", i, at)
        k = _rotated(spec, tensors, k, f"{block}.key_norm.weight", i, at)
        own = "" if relative.get("shared_projections") else "position_"
        if relative.get("content_to_position"):
            options["position_keys"] = dense(f"{block}.{own}key", table)
        if relative.get("position_to_content"):
            options["position_queries"] = dense(f"{block}.{own}query", table)
        context = by.attention(
            q, k, v, cu_seqlens, spec["num_heads"], spec["num_kv_heads"],
            window=(window, right), **options,
        )  # fmt: skip
        given = norm(f"{block}.output_norm", dense(f"{block}.output", context))
        x = by.residual(_scaled(tensors, block, given, x))
        x = x if pre else norm(f"{block}.norm", x)
        block = f"layers.{index}.ffn"
        if not spec["norm"].get("shared"):
            y = norm(f"{block}.norm", entering if placement == "parallel" else x) if pre else x
        if ffn["kind"] == "mixture":
            given, state = _mixture(spec, tensors, block, y, state)
        else:
            inner = dense(f"{block}.up", y, ffn["activation"] if ffn["kind"] == "plain" else "none")
            if ffn["kind"] == "gated":
                inner = dense(f"{block}.gate", y, ffn["activation"]) * inner
            given = norm(f"{block}.output_norm", dense(f"{block}.down", inner))
        x = by.residual(_scaled(tensors, block, given, x))
        x = x if pre else norm(f"{block}.norm", x)
        if i == 0 and "convolution" in spec:
            x = norm("convolution.norm", x + _convolution(spec, tensors, entered, cu_seqlens))
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
