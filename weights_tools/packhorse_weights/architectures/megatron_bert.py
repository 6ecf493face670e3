"""Megatron-BERT (Shoeybi et al. 2019): BERT with norms before its blocks, and none behind the
tables."""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.bert import BUFFERS, ENCODER, NAMES
from packhorse_weights.architectures.heads import BERT_LM, OF_POOLER
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    result = encoder_spec(model_type, config)
    return result | {"norm": {**result["norm"], "placement": "pre", "embeddings": False}}


ARCHITECTURE = Architecture(
    classes={"megatron-bert": "MegatronBert"},
    spec=spec,
    names={
        **{ours: theirs for ours, theirs in NAMES.items() if ours != "embeddings.norm"},
        "layers.{i}.attention.norm": "encoder.layer.{i}.attention.ln",
        "layers.{i}.ffn.norm": "encoder.layer.{i}.ln",
        "final_norm": "encoder.ln",
    },
    encoder=ENCODER,
    unused=BUFFERS,
    heads=OF_POOLER,
    masked_lm=BERT_LM,
)
