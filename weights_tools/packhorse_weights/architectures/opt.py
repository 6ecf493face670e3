"""OPT (Zhang et al. 2022): learned positions from row 2 on; the 350m one is post-norm, with tables
narrower than the model."""

from typing import Any

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture, refuse_variants, sizes
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec

_OFFSET = 2  # row of the first token in the table of positions


def _is_narrow(config: Config) -> bool:
    hidden = config.integer("hidden_size")
    return config.integer("word_embed_proj_dim", default=hidden) != hidden


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    if not config.boolean("layer_norm_elementwise_affine", True):
        raise CheckpointError(f"{config.where}: norms without weights are not supported")
    before = config.boolean("do_layer_norm_before", True)
    if before:
        config.refuse("_remove_final_layer_norm")
    config = config.renamed({"ffn_dim": "intermediate_size", "activation_function": "hidden_act"})
    longest = config.tokens("max_position_embeddings", default=2048)
    bias = config.boolean("enable_bias", True)
    positions: dict[str, Any] = {
        "kind": "learned",
        "count": longest + _OFFSET,
        "offset": _OFFSET,
    }
    narrow: dict[str, Any] = {}
    if _is_narrow(config):
        if not config.class_name.endswith("ForCausalLM"):
            raise CheckpointError(
                f"{config.where}: word_embed_proj_dim other than hidden_size is supported in "
                f"OPTForCausalLM alone, found {config.class_name!r:.80}"
            )
        narrow = {
            "embedding_size": config.integer("word_embed_proj_dim"),
            "embedding_bias": False,
        }
        positions["after_projection"] = True
    return {
        **sizes(model_type, config),
        **narrow,
        "type_vocab_size": 0,
        "max_seqlen": longest,
        "positions": positions,
        "norm": {
            "kind": "layer",
            "placement": "pre" if before else "post",
            "eps": 1e-5,
            "embeddings": False,
        },
        "attention": {"mask": "causal", "qkv_bias": bias, "output_bias": bias},
        "ffn": {
            "kind": "plain",
            "activation": config.choice("hidden_act", ACTIVATIONS, "relu"),
            "up_bias": bias,
            "down_bias": bias,
        },
    }


ARCHITECTURE = Architecture(
    classes={"opt": "OPT"},
    spec=spec,
    names={
        "embeddings.word": "embed_tokens.weight",
        "embeddings.position": "embed_positions.weight",
        "embeddings.projection": "project_in",
        "layers.{i}.attention.query": "layers.{i}.self_attn.q_proj",
        "layers.{i}.attention.key": "layers.{i}.self_attn.k_proj",
        "layers.{i}.attention.value": "layers.{i}.self_attn.v_proj",
        "layers.{i}.attention.output": "layers.{i}.self_attn.out_proj",
        "layers.{i}.attention.norm": "layers.{i}.self_attn_layer_norm",
        "layers.{i}.ffn.up": "layers.{i}.fc1",
        "layers.{i}.ffn.down": "layers.{i}.fc2",
        "layers.{i}.ffn.norm": "layers.{i}.final_layer_norm",
        "final_norm": "final_layer_norm",
        "lm.projection": "project_out",
    },
    encoder=("embed_tokens.", "embed_positions.", "project_", "layers.", "final_layer_norm."),
    lm_head=LmHead(
        tied=True,
        options=lambda config: {"projection": True} if _is_narrow(config) else {},
    ),
)
