"""Phi-3 and Phi-4: a Llama whose layers are stored together; long ones with LongRoPE."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import (
    Architecture,
    local_layers,
    refuse_variants,
    rms_norms,
    sizes,
    with_defaults,
)
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.architectures.rope import rope, rope_kind, rope_section
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def _with_longrope(config: Config) -> Config:
    """LongRoPE under the name that it has today."""
    section = rope_section(config)
    if rope_kind(section) in ("su", "yarn"):
        scaling = {**section.fields, "rope_type": "longrope"}
        config = Config({**config.fields, "rope_scaling": scaling}, config.where)
    return with_defaults(
        config, max_position_embeddings=4096, original_max_position_embeddings=4096
    )


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    config = _with_longrope(config)
    result = sizes(model_type, config)
    rotation = rope(config, 10000.0, result["head_dim"], partial=True)
    longest = config.tokens("max_position_embeddings")
    window = {}
    if config.fields.get("sliding_window") is not None:
        layers = list(range(result["num_layers"]))
        # A token sees itself and sliding_window - 1 tokens before.
        window = local_layers(config, result, config.tokens("sliding_window") - 1, layers)
    return {
        **result,
        "type_vocab_size": 0,
        "max_seqlen": min(longest, rotation.longest or longest),
        "positions": {"kind": "none"},
        **window,
        "norm": rms_norms(config, 1e-5),
        "attention": {
            "mask": "causal",
            "qkv_bias": False,
            "output_bias": False,
            "rope": rotation.spec,
        },
        "ffn": {
            "kind": "gated",
            "activation": config.choice("hidden_act", ACTIVATIONS, "silu"),
            "up_bias": False,
            "down_bias": False,
        },
    }


ARCHITECTURE = Architecture(
    classes={"phi3": "Phi3"},
    spec=spec,
    names={
        "embeddings.word": "embed_tokens.weight",
        "layers.{i}.attention.qkv": "layers.{i}.self_attn.qkv_proj",
        "layers.{i}.attention.output": "layers.{i}.self_attn.o_proj",
        "layers.{i}.attention.norm": "layers.{i}.input_layernorm",
        "layers.{i}.ffn.gate_up": "layers.{i}.mlp.gate_up_proj",
        "layers.{i}.ffn.down": "layers.{i}.mlp.down_proj",
        "layers.{i}.ffn.norm": "layers.{i}.post_attention_layernorm",
        "final_norm": "norm",
    },
    encoder=("embed_tokens.", "layers.", "norm."),
    unused=("layers.{i}.self_attn.rotary_emb.inv_freq",),
    lm_head=LmHead(),
)
