"""Gemma 2 and 3: scaled embeddings, a norm before and after each block, windows in most layers;
EmbeddingGemma is a Gemma 3 that sees both ways."""

import math
from typing import Any

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import (
    Architecture,
    local_layers,
    refuse_variants,
    sizes,
    with_defaults,
)
from packhorse_weights.architectures.decoder import NAMES
from packhorse_weights.architectures.heads import LmHead, Options
from packhorse_weights.architectures.rope import of_layers, rope
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec

_DEFAULTS = {
    "gemma2": {
        "max_position_embeddings": 8192,
        "sliding_window_pattern": 2,
    },
    "gemma3_text": {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
    },
}
_SIZES = {  # defaults of both model types
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def _soft_cap(config: Config, name: str, default: float | None) -> dict[str, float]:
    """`soft_cap`, or nothing where the config says null."""
    if config.fields.get(name, default) is None:
        return {}
    return {"soft_cap": config.number(name, default or 0.0, high=1e6)}


def _ropes(
    model_type: str, config: Config, head_dim: int
) -> tuple[dict[str, Any], dict[str, Any], int | None]:
    """The rotation of layers without a window and that of layers with one, and the longest
    sequence."""
    if model_type == "gemma2":
        spec, longest = rope(config, 10000.0, head_dim)
        return spec, spec, longest
    whole = of_layers(config, "full_attention", "rope_theta", scaled=True)
    spec, longest = rope(whole, 1e6, head_dim)
    windowed = of_layers(config, "sliding_attention", "rope_local_base_freq", scaled=False)
    local, _ = rope(windowed, 1e4, head_dim)
    if "frequencies" in spec or "frequencies" in local:
        raise CheckpointError(
            f"{config.where}: Gemma 3's rotation may be scaled by one factor, and is not"
        )
    return spec, local, longest


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    config = with_defaults(config, **_SIZES, **_DEFAULTS[model_type])
    result = sizes(model_type, config)
    both_ways = config.boolean("use_bidirectional_attention", False)
    window = config.tokens("sliding_window")
    # A token sees itself and sliding_window - 1 tokens before; both ways, half of it on each side.
    window = window // 2 if both_ways else window - 1
    pattern = config.integer("sliding_window_pattern")
    local = [i for i in range(result["num_layers"]) if (i + 1) % pattern]
    rotation, windowed, longest = _ropes(model_type, config, result["head_dim"])
    positions = config.tokens("max_position_embeddings")
    bias = config.boolean("attention_bias", False)
    scalar = config.positive("query_pre_attn_scalar", 256)
    cap = 50.0 if model_type == "gemma2" else None
    return {
        **result,
        "embedding_scale": math.sqrt(result["hidden_size"]),
        "type_vocab_size": 0,
        "max_seqlen": min(positions, longest or positions),
        "positions": {"kind": "none"},
        **local_layers(config, result, window, local, "local"),
        "ropes": {"local": windowed},
        "norm": {
            "kind": "rms",
            "placement": "both",
            "eps": config.number("rms_norm_eps", 1e-6),
            "embeddings": False,
            "gamma_offset": 1.0,
        },
        "attention": {
            "mask": "bidirectional" if both_ways else "causal",
            "qkv_bias": bias,
            "output_bias": bias,
            "qk_norm": model_type != "gemma2",
            "scale": scalar**-0.5,
            **_soft_cap(config, "attn_logit_softcapping", cap),
            "rope": rotation,
        },
        "ffn": {
            "kind": "gated",
            "activation": config.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
            "up_bias": False,
            "down_bias": False,
        },
    }


def _lm_options(config: Config) -> Options:
    cap = 30.0 if config.fields.get("model_type") == "gemma2" else None
    return _soft_cap(config, "final_logit_softcapping", cap)


ARCHITECTURE = Architecture(
    classes={"gemma2": "Gemma2", "gemma3_text": "Gemma3Text"},
    spec=spec,
    names={
        **NAMES,
        "layers.{i}.attention.output_norm": "layers.{i}.post_attention_layernorm",
        "layers.{i}.ffn.norm": "layers.{i}.pre_feedforward_layernorm",
        "layers.{i}.ffn.output_norm": "layers.{i}.post_feedforward_layernorm",
    },
    encoder=("embed_tokens.", "layers.", "norm."),
    lm_head=LmHead(tied=True, options=_lm_options),
)
