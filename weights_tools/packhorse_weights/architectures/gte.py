"""GTE v1.5 and multilingual (Zhang et al. 2024): post-norm, rotary positions, GeGLU.

Snowflake Arctic Embed m v2.0 is of this family.
"""

from typing import Any

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.heads import OF_POOLER, masked_lm
from packhorse_weights.architectures.rope import rope_kind, rope_theta
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec


def _rope(config: Config, head_dim: int) -> dict[str, Any]:
    """The rotation. Published configs may scale it by a fixed NTK rule: theta is multiplied by the
    factor, and all frequencies are divided by the factor to the power 2 / head_dim."""
    scaling = config.section("rope_scaling")
    unscaled = {name: value for name, value in config.fields.items() if name != "rope_scaling"}
    theta = rope_theta(Config(unscaled, config.where), 160000.0)
    if rope_kind(scaling) == "default":
        return {"theta": theta}
    if scaling.fields.get("type") != "ntk" or scaling.fields.keys() - {"type", "factor", "mixed_b"}:
        raise CheckpointError(f"{config.where}: rope_scaling {scaling.fields!r:.80}: expected ntk")
    scaling.refuse("mixed_b")
    factor = scaling.positive("factor", 1.0)
    return {"theta": theta * factor, "factor": factor ** (2 / head_dim)}


def spec(model_type: str, config: Config) -> Spec:
    config.refuse("logn_attention_scale")
    config.refuse("layer_norm_type", "layer_norm")
    if model_type == "new":
        config.refuse("position_embedding_type", "rope")
    fields = {**config.fields, "position_embedding_type": "absolute"}
    result = encoder_spec(model_type, Config(fields, config.where))
    return result | {
        "positions": {"kind": "none"},
        "attention": {"mask": "bidirectional", "rope": _rope(config, result["head_dim"])},
        "ffn": {**result["ffn"], "kind": "gated", "up_bias": False},
    }


ARCHITECTURE = Architecture(
    classes={"new": "New", "gte": "Gte"},
    spec=spec,
    names={
        "embeddings.word": "embeddings.word_embeddings.weight",
        "embeddings.type": "embeddings.token_type_embeddings.weight",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.qkv": "encoder.layer.{i}.attention.qkv_proj",
        "layers.{i}.attention.output": "encoder.layer.{i}.attention.o_proj",
        "layers.{i}.attention.norm": "encoder.layer.{i}.attn_ln",
        "layers.{i}.ffn.up_gate": "encoder.layer.{i}.mlp.up_gate_proj",
        "layers.{i}.ffn.down": "encoder.layer.{i}.mlp.down_proj",
        "layers.{i}.ffn.norm": "encoder.layer.{i}.mlp_ln",
        "pooler": "pooler.dense",
    },
    encoder=("embeddings.", "encoder.", "pooler."),
    unused=("embeddings.position_ids",),
    heads=OF_POOLER,
    masked_lm=masked_lm("lm_head.dense", "lm_head.norm", "lm_head.decoder", field=None),
)
