"""MPNet (Song et al. 2020): BERT without types; attention adds a bias for the bucket of each
distance."""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.bert import BUFFERS, ENCODER
from packhorse_weights.architectures.heads import ROBERTA, ROBERTA_LM
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec

# transformers uses 32 buckets up to distance 128 whatever the config says, and counts positions
# from the padding id, 1.
BUCKETS, MAX_DISTANCE, PADDING = 32, 128, 1


def spec(model_type: str, config: Config) -> Spec:
    config.integer("relative_attention_num_buckets", default=BUCKETS, low=BUCKETS, high=BUCKETS)
    term = {"kind": "bucketed", "buckets": BUCKETS, "max_distance": MAX_DISTANCE}
    return encoder_spec(model_type, config, PADDING) | {
        "type_vocab_size": 0,
        "attention": {"mask": "bidirectional", "score_term": term},
    }


ARCHITECTURE = Architecture(
    classes={"mpnet": "MPNet"},
    spec=spec,
    names={
        "embeddings.word": "embeddings.word_embeddings.weight",
        "embeddings.position": "embeddings.position_embeddings.weight",
        "embeddings.norm": "embeddings.LayerNorm",
        "relative_bias": "encoder.relative_attention_bias.weight",
        "layers.{i}.attention.query": "encoder.layer.{i}.attention.attn.q",
        "layers.{i}.attention.key": "encoder.layer.{i}.attention.attn.k",
        "layers.{i}.attention.value": "encoder.layer.{i}.attention.attn.v",
        "layers.{i}.attention.output": "encoder.layer.{i}.attention.attn.o",
        "layers.{i}.attention.norm": "encoder.layer.{i}.attention.LayerNorm",
        "layers.{i}.ffn.up": "encoder.layer.{i}.intermediate.dense",
        "layers.{i}.ffn.down": "encoder.layer.{i}.output.dense",
        "layers.{i}.ffn.norm": "encoder.layer.{i}.output.LayerNorm",
        "pooler": "pooler.dense",
    },
    encoder=ENCODER,
    unused=BUFFERS,
    heads=ROBERTA,
    masked_lm=ROBERTA_LM,
)
