"""GPT-J (Wang and Komatsuzaki 2021): attention and feed-forward block side by side on one norm,
rotation of neighbouring columns."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture, refuse_variants, sizes
from packhorse_weights.architectures.gpt2 import renamed
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    config = renamed(config)
    result = sizes(model_type, config)
    return {
        **result,
        "type_vocab_size": 0,
        "max_seqlen": config.tokens("max_position_embeddings", default=2048),
        "positions": {"kind": "none"},
        "norm": {
            "kind": "layer",
            "placement": "parallel",
            "shared": True,
            "eps": config.number("layer_norm_epsilon", 1e-5),
            "embeddings": False,
        },
        "attention": {
            "mask": "causal",
            "qkv_bias": False,
            "output_bias": False,
            "rope": {
                "theta": 10000.0,
                "dims": config.integer("rotary_dim", low=2, high=result["head_dim"]),
                "interleaved": True,
            },
        },
        "ffn": {"kind": "plain", "activation": config.choice("hidden_act", ACTIVATIONS, "")},
    }


ARCHITECTURE = Architecture(
    classes={"gptj": "GPTJ"},
    spec=spec,
    names={
        "embeddings.word": "wte.weight",
        "layers.{i}.attention.query": "h.{i}.attn.q_proj",
        "layers.{i}.attention.key": "h.{i}.attn.k_proj",
        "layers.{i}.attention.value": "h.{i}.attn.v_proj",
        "layers.{i}.attention.output": "h.{i}.attn.out_proj",
        "layers.{i}.attention.norm": "h.{i}.ln_1",
        "layers.{i}.ffn.up": "h.{i}.mlp.fc_in",
        "layers.{i}.ffn.down": "h.{i}.mlp.fc_out",
        "final_norm": "ln_f",
    },
    encoder=("wte.", "h.", "ln_f."),
    unused=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),
    lm_head=LmHead(options=lambda config: {"bias": True}),
)
