"""ALBERT (Lan et al. 2019): layers share weights, narrow embeddings are projected."""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.bert import BUFFERS, ENCODER
from packhorse_weights.architectures.heads import OF_POOLER, masked_lm
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec

LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"


def spec(model_type: str, config: Config) -> Spec:
    config.refuse("inner_group_num", 1)
    result = encoder_spec(model_type, config, activation="gelu_new")
    layers = result["num_layers"]
    groups = config.integer("num_hidden_groups", default=1, high=layers)
    return result | {
        "embedding_size": config.integer("embedding_size", default=128),
        "layers": [{"weights": int(i / (layers / groups))} for i in range(layers)],
    }


ARCHITECTURE = Architecture(
    classes={"albert": "Albert"},
    spec=spec,
    names={
        "embeddings.word": "embeddings.word_embeddings.weight",
        "embeddings.position": "embeddings.position_embeddings.weight",
        "embeddings.type": "embeddings.token_type_embeddings.weight",
        "embeddings.norm": "embeddings.LayerNorm",
        "embeddings.projection": "encoder.embedding_hidden_mapping_in",
        "layers.{i}.attention.query": f"{LAYER}.attention.query",
        "layers.{i}.attention.key": f"{LAYER}.attention.key",
        "layers.{i}.attention.value": f"{LAYER}.attention.value",
        "layers.{i}.attention.output": f"{LAYER}.attention.dense",
        "layers.{i}.attention.norm": f"{LAYER}.attention.LayerNorm",
        "layers.{i}.ffn.up": f"{LAYER}.ffn",
        "layers.{i}.ffn.down": f"{LAYER}.ffn_output",
        "layers.{i}.ffn.norm": f"{LAYER}.full_layer_layer_norm",
        "pooler": "pooler",
    },
    encoder=ENCODER,
    unused=BUFFERS,
    heads=OF_POOLER,
    masked_lm=masked_lm(
        "predictions.dense",
        "predictions.LayerNorm",
        "predictions.decoder",
        "predictions.bias",
        default="gelu_new",
    ),
)
