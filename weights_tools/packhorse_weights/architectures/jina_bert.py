"""Jina Embeddings v2 (Guenther et al. 2023): BERT with ALiBi and a gated feed-forward block."""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.bert import BUFFERS, ENCODER, NAMES
from packhorse_weights.architectures.heads import BERT_LM, OF_POOLER
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec

_GATES = {"geglu": "gelu", "reglu": "relu"}


def has_alibi(config: Config) -> bool:
    return config.fields.get("position_embedding_type") == "alibi"


def spec(model_type: str, config: Config) -> Spec:
    gate = config.choice("feed_forward_type", _GATES, "")
    fields = {**config.fields, "position_embedding_type": "absolute"}
    return encoder_spec("jina-bert", Config(fields, config.where)) | {
        "positions": {"kind": "none"},
        "attention": {"mask": "bidirectional", "score_term": {"kind": "alibi"}},
        "ffn": {"kind": "gated", "activation": gate, "up_bias": False},
    }


_REPLACED = (
    "embeddings.position",
    "layers.{i}.ffn.up",
    "layers.{i}.ffn.down",
    "layers.{i}.ffn.norm",
)

ARCHITECTURE = Architecture(
    classes={"bert": "JinaBert"},
    spec=spec,
    names={
        **{ours: theirs for ours, theirs in NAMES.items() if ours not in _REPLACED},
        "layers.{i}.ffn.gate_up": "encoder.layer.{i}.mlp.gated_layers",
        "layers.{i}.ffn.down": "encoder.layer.{i}.mlp.wo",
        "layers.{i}.ffn.norm": "encoder.layer.{i}.mlp.layernorm",
    },
    encoder=ENCODER,
    unused=BUFFERS,
    heads=OF_POOLER,
    masked_lm=BERT_LM,
    accepts=has_alibi,
)
