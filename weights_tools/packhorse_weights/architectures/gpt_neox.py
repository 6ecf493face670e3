"""GPT-NeoX (Black et al. 2022) and Pythia: attention and feed-forward block side by side, each on a
norm of its own; a part of each head is rotated."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture, refuse_variants, sizes
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.architectures.rope import rope
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    config = config.renamed(
        {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    )
    if "partial_rotary_factor" not in config.fields:
        config = Config({**config.fields, "partial_rotary_factor": 0.25}, config.where)
    result = sizes(model_type, config)
    rotation = rope(config, 10000.0, result["head_dim"], partial=True)
    longest = config.tokens("max_position_embeddings")
    bias = config.boolean("attention_bias", True)
    return {
        **result,
        "type_vocab_size": 0,
        "max_seqlen": min(longest, rotation.longest or longest),
        "positions": {"kind": "none"},
        "norm": {
            "kind": "layer",
            "placement": "parallel" if config.boolean("use_parallel_residual", True) else "pre",
            "eps": config.number("layer_norm_eps", 1e-5),
            "embeddings": False,
        },
        "attention": {
            "mask": "causal",
            "qkv_bias": bias,
            "output_bias": bias,
            "rope": rotation.spec,
        },
        "ffn": {"kind": "plain", "activation": config.choice("hidden_act", ACTIVATIONS, "gelu")},
    }


ARCHITECTURE = Architecture(
    classes={"gpt_neox": "GPTNeoX"},
    spec=spec,
    names={
        "embeddings.word": "embed_in.weight",
        "layers.{i}.attention.qkv_by_head": "layers.{i}.attention.query_key_value",
        "layers.{i}.attention.output": "layers.{i}.attention.dense",
        "layers.{i}.attention.norm": "layers.{i}.input_layernorm",
        "layers.{i}.ffn.up": "layers.{i}.mlp.dense_h_to_4h",
        "layers.{i}.ffn.down": "layers.{i}.mlp.dense_4h_to_h",
        "layers.{i}.ffn.norm": "layers.{i}.post_attention_layernorm",
        "final_norm": "final_layer_norm",
    },
    encoder=("embed_in.", "layers.", "final_layer_norm."),
    unused=(
        "layers.{i}.attention.bias",
        "layers.{i}.attention.masked_bias",
        "layers.{i}.attention.rotary_emb.inv_freq",
    ),
    lm_head=LmHead("embed_out"),
)
