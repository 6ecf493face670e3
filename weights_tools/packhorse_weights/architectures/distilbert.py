"""DistilBERT (Sanh et al. 2019): BERT without types and without a pooler."""

from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.heads import OF_TOKENS, masked_lm, of_first_tokens
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec

FIELDS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}


def spec(model_type: str, config: Config) -> Spec:
    # sinusoidal_pos_embds only says how the position table was initialised; the checkpoint stores
    # it anyway.
    config.refuse("layer_norm_eps", 1e-12)  # a constant in transformers' class
    return encoder_spec(model_type, config.renamed(FIELDS)) | {"type_vocab_size": 0}


ARCHITECTURE = Architecture(
    classes={"distilbert": "DistilBert"},
    spec=spec,
    names={
        "embeddings.word": "embeddings.word_embeddings.weight",
        "embeddings.position": "embeddings.position_embeddings.weight",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.query": "transformer.layer.{i}.attention.q_lin",
        "layers.{i}.attention.key": "transformer.layer.{i}.attention.k_lin",
        "layers.{i}.attention.value": "transformer.layer.{i}.attention.v_lin",
        "layers.{i}.attention.output": "transformer.layer.{i}.attention.out_lin",
        "layers.{i}.attention.norm": "transformer.layer.{i}.sa_layer_norm",
        "layers.{i}.ffn.up": "transformer.layer.{i}.ffn.lin1",
        "layers.{i}.ffn.down": "transformer.layer.{i}.ffn.lin2",
        "layers.{i}.ffn.norm": "transformer.layer.{i}.output_layer_norm",
    },
    encoder=("embeddings.", "transformer."),
    unused=("embeddings.position_ids",),
    heads={
        "ForSequenceClassification": of_first_tokens("relu", "pre_classifier", "classifier"),
        **OF_TOKENS,
    },
    masked_lm=masked_lm(
        "vocab_transform", "vocab_layer_norm", "vocab_projector", field="activation"
    ),
)
