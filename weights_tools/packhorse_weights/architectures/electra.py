"""ELECTRA (Clark et al. 2020): BERT without a pooler, small models with narrower embeddings."""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.bert import BUFFERS, NAMES
from packhorse_weights.architectures.heads import OF_TOKENS, masked_lm, of_first_tokens
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    result = encoder_spec(model_type, config)
    embedding = config.integer("embedding_size", default=128)
    # The projection exists only if the two widths differ.
    return result | ({"embedding_size": embedding} if embedding != result["hidden_size"] else {})


ARCHITECTURE = Architecture(
    classes={"electra": "Electra"},
    spec=spec,
    names={
        **{ours: theirs for ours, theirs in NAMES.items() if ours != "pooler"},
        "embeddings.projection": "embeddings_project",
    },
    encoder=("embeddings.", "embeddings_project.", "encoder."),
    unused=BUFFERS,
    heads={
        "ForSequenceClassification": of_first_tokens(
            "gelu", "classifier.dense", "classifier.out_proj"
        ),
        **OF_TOKENS,
    },
    masked_lm=masked_lm(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        field=None,
    ),
)
