"""ZAYA1: compressed convolutional attention, a mixture of experts whose router hands a state from
layer to layer, and scaled residuals."""

from typing import Any

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import (
    Architecture,
    refuse_variants,
    rms_norms,
    sizes,
    with_defaults,
)
from packhorse_weights.architectures.heads import LmHead, Options
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec

_DEFAULTS = {
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "moe_intermediate_size": 2048,
}
_KINDS = {"hybrid": 5e6, "hybrid_sliding": 1e4}  # kind of layer -> its theta


def _ropes(config: Config, head_dim: int) -> list[dict[str, Any]]:
    """The rotations of layers of both kinds."""
    sections = config.section("rope_parameters")
    thetas, parts = [], set()
    for kind, theta in _KINDS.items():
        section = sections.section(kind)
        section.refuse("rope_type", "default")
        thetas.append(section.positive("rope_theta", theta))
        parts.add(section.number("partial_rotary_factor", 1.0 if section.fields else 0.5))
    if len(parts) > 1:
        raise CheckpointError(
            f"{config.where}: rope_parameters: partial_rotary_factor {sorted(parts)}, expected one "
            "for layers of both kinds"
        )
    dims = int(head_dim * parts.pop())
    return [{"theta": theta, "dims": dims} for theta in thetas]


def _layers(config: Config, num_layers: int) -> dict[str, Any]:
    """`layers` of the spec, or nothing where none has a window."""
    kinds = config.texts("layer_types") or ["hybrid"] * num_layers
    if len(kinds) != num_layers or {*kinds} - {*_KINDS}:
        raise CheckpointError(
            f"{config.where}: layer_types {kinds!r:.80}: expected one of {', '.join(_KINDS)} for "
            "each layer"
        )
    if "hybrid_sliding" not in kinds:
        return {}
    # A token sees itself and sliding_window - 1 tokens before.
    own = {"window": config.tokens("sliding_window") - 1, "rope": "local"}
    return {"layers": [own if kind == "hybrid_sliding" else {} for kind in kinds]}


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    config = with_defaults(config, **_DEFAULTS)
    config = config.renamed({"moe_intermediate_size": "intermediate_size"})
    config.refuse("num_experts_per_tok", 1)
    result = sizes(model_type, config)
    bias = config.boolean("attention_bias", False)
    rope, local = _ropes(config, result["head_dim"])
    return {
        **result,
        "type_vocab_size": 0,
        "max_seqlen": config.tokens("max_position_embeddings"),
        "positions": {"kind": "none"},
        **_layers(config, result["num_layers"]),
        "ropes": {"local": local},
        "residual_scales": True,
        "norm": rms_norms(config, 1e-5),
        "attention": {
            "kind": "cca",
            "mask": "causal",
            "depthwise_width": config.integer("cca_time0", 2, high=8),
            "grouped_width": config.integer("cca_time1", 2, high=8),
            "qkv_bias": bias,
            "output_bias": bias,
            "rope": rope,
        },
        "ffn": {
            "kind": "moe",
            "activation": config.choice("hidden_act", ACTIVATIONS, "silu"),
            "experts": config.integer("num_experts", 16),
            "router": {"kind": "state", "size": config.integer("router_hidden_size", 256)},
        },
    }


def _lm_options(config: Config) -> Options:
    return {"bias": True} if config.boolean("lm_head_bias", False) else {}


def _residuals(ours: str, theirs: str) -> dict[str, str]:
    """Scales and shifts of a block's output, and of the residual stream that it is added to."""
    return {
        f"layers.{{i}}.{ours}.{part}_{number}": f"layers.{{i}}.{theirs}.{name}_{last}"
        for part, name in (("output", "hidden_states"), ("residual", "residual"))
        for number, last in (("scale", "scale"), ("shift", "bias"))
    }


_ATTENTION, _MIXTURE = "layers.{i}.self_attn", "layers.{i}.mlp"

ARCHITECTURE = Architecture(
    classes={"zaya": "Zaya"},
    spec=spec,
    names={
        "embeddings.word": "embed_tokens.weight",
        "embeddings.scale": "input_hidden_states_scale",
        "embeddings.shift": "input_hidden_states_bias",
        "layers.{i}.attention.query": f"{_ATTENTION}.qkv_proj.q_proj",
        "layers.{i}.attention.key": f"{_ATTENTION}.qkv_proj.k_proj",
        "layers.{i}.attention.value": f"{_ATTENTION}.qkv_proj.v_proj_current",
        "layers.{i}.attention.delayed_value": f"{_ATTENTION}.qkv_proj.v_proj_delayed",
        "layers.{i}.attention.depthwise": f"{_ATTENTION}.qkv_proj.conv_qk_depthwise",
        "layers.{i}.attention.grouped": f"{_ATTENTION}.qkv_proj.conv_qk_grouped",
        "layers.{i}.attention.temperature": f"{_ATTENTION}.qk_norm.temp",
        "layers.{i}.attention.output": f"{_ATTENTION}.o_proj",
        "layers.{i}.attention.norm": "layers.{i}.input_layernorm",
        **_residuals("attention", "post_attention_residual_scale"),
        "layers.{i}.ffn.router.down": f"{_MIXTURE}.gate.down_proj",
        "layers.{i}.ffn.router.state_scale": f"{_MIXTURE}.gate.router_states_scale",
        "layers.{i}.ffn.router.norm": f"{_MIXTURE}.gate.router_mlp.norm",
        "layers.{i}.ffn.router.first": f"{_MIXTURE}.gate.router_mlp.fc1",
        "layers.{i}.ffn.router.second": f"{_MIXTURE}.gate.router_mlp.fc2",
        "layers.{i}.ffn.router.output": f"{_MIXTURE}.gate.router_mlp.out_proj",
        "layers.{i}.ffn.router.balance": f"{_MIXTURE}.gate.balancing_biases",
        "layers.{i}.ffn.experts.gate_up": f"{_MIXTURE}.experts.gate_up_proj",
        "layers.{i}.ffn.experts.down": f"{_MIXTURE}.experts.down_proj",
        "layers.{i}.ffn.norm": "layers.{i}.post_attention_layernorm",
        **_residuals("ffn", "post_mlp_residual_scale"),
        "final_norm": "norm",
    },
    encoder=("embed_tokens.", "layers.", "norm.", "input_hidden_states"),
    unused=("layers.{i}.self_attn.rotary_emb.inv_freq",),
    lm_head=LmHead(tied=True, options=_lm_options),
)
