"""DeBERTa (He et al. 2020, 2021), v1 to v3: attention also compares contents with relative
positions."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture, encoder_spec
from packhorse_weights.architectures.bert import BUFFERS, ENCODER
from packhorse_weights.architectures.heads import BERT_LM, OF_TOKENS, Head, Options
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec

_TERMS = ("c2p", "p2c")


def _terms(config: Config) -> list[str]:
    """The terms that `pos_att_type` names, in a list or in a string joined by bars."""
    value = config.fields.get("pos_att_type")
    whole = value.lower() if isinstance(value, str) else "|".join(config.texts("pos_att_type"))
    terms = [term.strip() for term in whole.split("|")]
    if any(term not in _TERMS for term in terms):
        raise CheckpointError(
            f"{config.where}: pos_att_type {value!r:.80} is not supported; supported: c2p, p2c"
        )
    return terms


def spec(model_type: str, config: Config) -> Spec:
    width = config.integer("conv_kernel_size", default=0, low=0, high=255)
    if width:
        config.refuse("conv_groups", 1)
        if width % 2 == 0:
            raise CheckpointError(f"{config.where}: conv_kernel_size {width} is not odd")
        activation = config.choice("conv_act", ACTIVATIONS, "tanh")
    if not config.boolean("relative_attention", False):
        raise CheckpointError(f"{config.where}: relative_attention = false is not supported")
    result = encoder_spec(model_type, config)
    for name, expected in (("embedding_size", "hidden_size"), ("attention_head_size", "head_dim")):
        config.refuse(name, result[expected])
    norms = {part.strip() for part in str(config.fields.get("norm_rel_ebd", "none")).split("|")}
    if norms - {"none", "layer_norm"}:
        raise CheckpointError(
            f"{config.where}: norm_rel_ebd {sorted(norms)!r:.80} is not supported; supported: "
            "none, layer_norm"
        )
    buckets = config.fields.get("position_buckets")
    most = config.fields.get("max_relative_positions")
    terms = _terms(config)
    first_version = model_type == "deberta"
    if first_version:
        for name in ("position_buckets", "talking_head", "share_att_key", "conv_kernel_size"):
            config.refuse(name, -1)
    term = {
        "kind": "disentangled",
        "buckets": 0 if buckets in (None, -1) else config.integer("position_buckets"),
        "max_distance": (
            result["positions"]["count"]
            if most in (None, -1, 0)
            else config.integer("max_relative_positions")
        ),
        "content_to_position": "c2p" in terms,
        "position_to_content": "p2c" in terms,
        "shared_projections": config.boolean("share_att_key", False),
        "norm": "layer_norm" in norms,
    }
    if not config.boolean("position_biased_input", True):
        # Relative positions have no limit, but the trained length limits a sequence all the same.
        result["positions"] = {"kind": "none"}
    return result | {
        "type_vocab_size": config.integer("type_vocab_size", default=0, low=0),
        "norm": {**result["norm"], "eps": config.number("layer_norm_eps", 1e-7)},
        "attention": {
            "mask": "bidirectional",
            **({"key_bias": False} if first_version else {}),
            "score_term": term,
        },
        **({"convolution": {"width": width, "activation": activation}} if width else {}),
    }


def _pooled_options(config: Config) -> Options:
    config.refuse("pooler_hidden_size", config.fields["hidden_size"])
    return {
        "input": "cls",
        "dense": {"activation": config.choice("pooler_hidden_act", ACTIVATIONS, "gelu")},
    }


HEADS = {
    "ForSequenceClassification": Head(
        _pooled_options, {"classifier.dense": "pooler.dense", "classifier": "classifier"}
    ),
    **OF_TOKENS,
}
NAMES = {
    "embeddings.word": "embeddings.word_embeddings.weight",
    "embeddings.position": "embeddings.position_embeddings.weight",
    "embeddings.type": "embeddings.token_type_embeddings.weight",
    "embeddings.norm": "embeddings.LayerNorm",
    "relative_embeddings": "encoder.rel_embeddings.weight",
    "relative_norm": "encoder.LayerNorm",
    "convolution": "encoder.conv.conv",
    "convolution.norm": "encoder.conv.LayerNorm",
    "layers.{i}.attention.query": "encoder.layer.{i}.attention.self.query_proj",
    "layers.{i}.attention.key": "encoder.layer.{i}.attention.self.key_proj",
    "layers.{i}.attention.value": "encoder.layer.{i}.attention.self.value_proj",
    "layers.{i}.attention.position_key": "encoder.layer.{i}.attention.self.pos_key_proj",
    "layers.{i}.attention.position_query": "encoder.layer.{i}.attention.self.pos_query_proj",
    "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention.norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.ffn.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.ffn.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.ffn.norm": "encoder.layer.{i}.output.LayerNorm",
}
# The first version stores query, key and value of each head together, and keys have no bias.
_SELF = "encoder.layer.{i}.attention.self"
FIRST_NAMES = {
    **{ours: theirs for ours, theirs in NAMES.items() if not theirs.startswith(f"{_SELF}.")},
    "layers.{i}.attention.qkv_by_head": f"{_SELF}.in_proj",
    "layers.{i}.attention.query.bias": f"{_SELF}.q_bias",
    "layers.{i}.attention.value.bias": f"{_SELF}.v_bias",
    "layers.{i}.attention.position_key": f"{_SELF}.pos_proj",
    "layers.{i}.attention.position_query": f"{_SELF}.pos_q_proj",
}
# Checkpoints hold a position table even if positions are not added to the embeddings.
UNUSED = (*BUFFERS, "embeddings.position_embeddings.weight")

ARCHITECTURE = Architecture(
    classes={"deberta-v2": "DebertaV2"},
    spec=spec,
    names=NAMES,
    encoder=ENCODER,
    unused=UNUSED,
    heads=HEADS,
    masked_lm=BERT_LM,
)
FIRST_ARCHITECTURE = Architecture(
    classes={"deberta": "Deberta"},
    spec=spec,
    names=FIRST_NAMES,
    encoder=ENCODER,
    unused=UNUSED,
    heads=HEADS,
    masked_lm=BERT_LM,
)
