"""BERT (Devlin et al. 2018), as transformers' `modeling_bert.py` stores it.

BGE, E5, GTE (the first ones), Snowflake Arctic Embed and many others are of this family.
"""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.heads import BERT_LM, OF_POOLER
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec

NAMES = {
    "embeddings.word": "embeddings.word_embeddings.weight",
    "embeddings.position": "embeddings.position_embeddings.weight",
    "embeddings.type": "embeddings.token_type_embeddings.weight",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{i}.attention.query": "encoder.layer.{i}.attention.self.query",
    "layers.{i}.attention.key": "encoder.layer.{i}.attention.self.key",
    "layers.{i}.attention.value": "encoder.layer.{i}.attention.self.value",
    "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention.norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.ffn.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.ffn.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.ffn.norm": "encoder.layer.{i}.output.LayerNorm",
    "pooler": "pooler.dense",
}
ENCODER = ("embeddings.", "encoder.", "pooler.")
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def spec(model_type: str, config: Config) -> Spec:
    return encoder_spec(model_type, config)


ARCHITECTURE = Architecture(
    classes={"bert": "Bert"},
    spec=spec,
    names=NAMES,
    encoder=ENCODER,
    unused=BUFFERS,
    heads=OF_POOLER,
    masked_lm=BERT_LM,
)
