"""GPT-2 (Radford et al. 2019): pre-norm, learned positions, dense layers stored as [in, out]."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture, refuse_variants, sizes, with_defaults
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec

# The names of GPT-2 and GPT-J for what other configs call otherwise.
RENAMED = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
}


def renamed(config: Config) -> Config:
    """The config of a GPT-2 or GPT-J under the usual names, its defaults filled in."""
    config = config.renamed(RENAMED)
    config = with_defaults(config, intermediate_size=4 * config.integer("hidden_size"))
    return with_defaults(config, hidden_act="gelu_new", layer_norm_epsilon=1e-5)


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    config.refuse("scale_attn_by_inverse_layer_idx")
    scaled = config.boolean("scale_attn_weights", True)
    config = renamed(config)
    positions = config.tokens("max_position_embeddings", default=1024)
    return {
        **sizes(model_type, config),
        "type_vocab_size": 0,
        "max_seqlen": positions,
        "positions": {"kind": "learned", "count": positions},
        "norm": {
            "kind": "layer",
            "placement": "pre",
            "eps": config.number("layer_norm_epsilon", 1e-5),
            "embeddings": False,
        },
        "attention": {"mask": "causal", **({} if scaled else {"scale": 1.0})},
        "ffn": {"kind": "plain", "activation": config.choice("hidden_act", ACTIVATIONS, "")},
    }


ARCHITECTURE = Architecture(
    classes={"gpt2": "GPT2"},
    spec=spec,
    names={
        "embeddings.word": "wte.weight",
        "embeddings.position": "wpe.weight",
        "layers.{i}.attention.qkv": "h.{i}.attn.c_attn",
        "layers.{i}.attention.output": "h.{i}.attn.c_proj",
        "layers.{i}.attention.norm": "h.{i}.ln_1",
        "layers.{i}.ffn.up": "h.{i}.mlp.c_fc",
        "layers.{i}.ffn.down": "h.{i}.mlp.c_proj",
        "layers.{i}.ffn.norm": "h.{i}.ln_2",
        "final_norm": "ln_f",
    },
    encoder=("wte.", "wpe.", "h.", "ln_f."),
    unused=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),
    transposed=("attention.qkv", "attention.output", "ffn.up", "ffn.down"),
    lm_head=LmHead(tied=True),
)
