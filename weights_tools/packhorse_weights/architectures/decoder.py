"""Qwen2, Qwen3, Llama, Mistral and models of their shape, SmolLM and SmolLM2 among them."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import (
    Architecture,
    local_layers,
    refuse_variants,
    rms_norms,
    sizes,
)
from packhorse_weights.architectures.heads import Head, LmHead
from packhorse_weights.architectures.rope import rope
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec

_DEFAULT_WINDOW = 4096  # null: none


def _window(model_type: str, config: Config, spec: Spec) -> dict[str, object]:
    """`layers`: Mistral's window is in all layers, Qwen's in the upper ones if at all."""
    used = model_type == "mistral" or config.boolean("use_sliding_window", False)
    layers = range(spec["num_layers"])
    if model_type.startswith("qwen"):
        layers = layers[config.tokens("max_window_layers", default=28, low=0) :]
    if model_type != "llama" and "sliding_window" not in config.fields:
        config = Config({**config.fields, "sliding_window": _DEFAULT_WINDOW}, config.where)
    if config.fields.get("sliding_window") is None or not used or model_type == "llama":
        if "sliding_attention" in config.texts("layer_types"):
            raise CheckpointError(f"{config.where}: layer_types without a sliding_window")
        return {}
    # A token sees itself and sliding_window - 1 tokens before.
    return local_layers(config, spec, config.tokens("sliding_window") - 1, list(layers))


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    config.refuse("pretraining_tp", 1)
    if model_type == "qwen3" and config.fields.get("head_dim") is None:
        config = Config({**config.fields, "head_dim": 128}, config.where)
    if model_type != "llama":
        config.integer("num_key_value_heads")  # required: models differ without it
    result = sizes(model_type, config)
    bias = model_type == "qwen2" or config.boolean("attention_bias", False)
    mlp_bias = model_type == "llama" and config.boolean("mlp_bias", False)
    causal = config.boolean("is_causal", True)
    window = _window(model_type, config, result)
    if window and not causal:
        raise CheckpointError(
            f"{config.where}: a sliding_window with is_causal = false is not supported"
        )
    rotation = rope(config, 10000.0, result["head_dim"])
    longest = config.tokens("max_position_embeddings")
    return {
        **result,
        "type_vocab_size": 0,
        "max_seqlen": min(longest, rotation.longest or longest),
        "positions": {"kind": "none"},
        **window,
        "norm": rms_norms(config, 1e-6),
        "attention": {
            "mask": "causal" if causal else "bidirectional",
            "qkv_bias": bias,
            "output_bias": bias and model_type != "qwen2",
            "qk_norm": model_type == "qwen3",
            "rope": rotation.spec,
        },
        "ffn": {
            "kind": "gated",
            "activation": config.choice("hidden_act", ACTIVATIONS, "silu"),
            "up_bias": mlp_bias,
            "down_bias": mlp_bias,
        },
    }


NAMES = {
    "embeddings.word": "embed_tokens.weight",
    "layers.{i}.attention.query": "layers.{i}.self_attn.q_proj",
    "layers.{i}.attention.key": "layers.{i}.self_attn.k_proj",
    "layers.{i}.attention.value": "layers.{i}.self_attn.v_proj",
    "layers.{i}.attention.query_norm": "layers.{i}.self_attn.q_norm",
    "layers.{i}.attention.key_norm": "layers.{i}.self_attn.k_norm",
    "layers.{i}.attention.output": "layers.{i}.self_attn.o_proj",
    "layers.{i}.attention.norm": "layers.{i}.input_layernorm",
    "layers.{i}.ffn.gate": "layers.{i}.mlp.gate_proj",
    "layers.{i}.ffn.up": "layers.{i}.mlp.up_proj",
    "layers.{i}.ffn.down": "layers.{i}.mlp.down_proj",
    "layers.{i}.ffn.norm": "layers.{i}.post_attention_layernorm",
    "final_norm": "norm",
}

ARCHITECTURE = Architecture(
    classes={"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "mistral": "Mistral"},
    spec=spec,
    names=NAMES,
    encoder=("embed_tokens.", "layers.", "norm."),
    unused=("layers.{i}.self_attn.rotary_emb.inv_freq",),
    heads={
        "ForSequenceClassification": Head(
            lambda config: {"input": "last", "bias": False}, {"classifier": "score"}
        ),
        "ForTokenClassification": Head(lambda config: {"input": "tokens"}, {"classifier": "score"}),
    },
    lm_head=LmHead(),
)
