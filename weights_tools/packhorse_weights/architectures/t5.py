"""T5, T5 1.1, FLAN-T5 and mT5 (Raffel et al. 2020; Shazeer 2020; Xue et al. 2021) as encoders.

RMS norms before each block, no biases, scores that are not scaled, and a bias for the bucket of
each distance, which the first layer holds for all. Sentence-T5, GTR and Instructor are of this
family.
"""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.architectures.heads import TOKENS
from packhorse_weights.config import MOST_LAYERS, Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec

# Distances have no end: this is the longest sequence where the config names none that is longer
# than those of training.
_LONGEST, _LEAST = 4096, 1024
_GATED = "gated-"


def is_gated(config: Config) -> bool:
    """True for the feed-forward blocks of T5 1.1 and all that came after."""
    return str(config.fields.get("feed_forward_proj", "relu")).startswith(_GATED)


def activation(config: Config) -> str:
    """The activation of feed-forward blocks. As in transformers, "gated-gelu" is the tanh
    approximation, as are the names that say so."""
    name = str(config.fields.get("feed_forward_proj", "relu")).removeprefix(_GATED)
    if is_gated(config) and name == "gelu":
        name = "gelu_new"
    named = Config({"feed_forward_proj": name}, config.where)
    return named.choice("feed_forward_proj", ACTIVATIONS, "relu")


def longest(config: Config) -> int:
    """The longest sequence that a session takes."""
    trained = config.tokens("n_positions", default=1)
    return trained if trained >= _LEAST else _LONGEST


def is_encoder(config: Config) -> bool:
    """True for classes that have no use for the decoder, whatever the files hold."""
    return config.class_name.endswith(("EncoderModel", "ForTokenClassification"))


def side(family: str, config: Config, name: str) -> Spec:
    """The description of a stack, "encoder" or "decoder"."""
    depth = config.integer("num_layers", high=MOST_LAYERS)
    if name == "decoder":
        depth = config.integer("num_decoder_layers", default=depth, high=MOST_LAYERS)
    heads = config.integer("num_heads")
    buckets = config.integer("relative_attention_num_buckets", default=32, low=4, high=2048)
    return {
        "family": family,
        "vocab_size": config.tokens("vocab_size"),
        "hidden_size": config.integer("d_model"),
        "num_layers": depth,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": config.integer("d_kv"),
        "intermediate_size": config.integer("d_ff"),
        "type_vocab_size": 0,
        "max_seqlen": longest(config),
        "positions": {"kind": "none"},
        "norm": {
            "kind": "rms",
            "placement": "pre",
            "eps": config.number("layer_norm_epsilon", 1e-6),
            "embeddings": False,
        },
        "attention": {
            "mask": "causal" if name == "decoder" else "bidirectional",
            "qkv_bias": False,
            "output_bias": False,
            "scale": 1.0,
            "score_term": {
                "kind": "bucketed",
                "buckets": buckets,
                "max_distance": config.integer(
                    "relative_attention_max_distance",
                    default=128,
                    low=buckets // 4 + 1,
                    high=1 << 14,
                ),
            },
        },
        "ffn": {
            "kind": "gated" if is_gated(config) else "plain",
            "activation": activation(config),
            "up_bias": False,
            "down_bias": False,
        },
    }


def spec(model_type: str, config: Config) -> Spec:
    config.refuse("is_decoder")
    if config.class_name.endswith(("ForSequenceClassification", "ForQuestionAnswering")):
        raise CheckpointError(
            f"{config.where}: {config.class_name!r:.80} is not supported; T5 is read as encoder, "
            "classifier of tokens or ...ForConditionalGeneration"
        )
    return side(model_type, config, "encoder")


_ATTENTION = "encoder.block.{i}.layer.0"
_FEED_FORWARD = "encoder.block.{i}.layer.1"
NAMES = {
    "embeddings.word": "shared.weight",
    "relative_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "layers.{i}.attention.query": f"{_ATTENTION}.SelfAttention.q",
    "layers.{i}.attention.key": f"{_ATTENTION}.SelfAttention.k",
    "layers.{i}.attention.value": f"{_ATTENTION}.SelfAttention.v",
    "layers.{i}.attention.output": f"{_ATTENTION}.SelfAttention.o",
    "layers.{i}.attention.norm": f"{_ATTENTION}.layer_norm",
    "layers.{i}.ffn.gate": f"{_FEED_FORWARD}.DenseReluDense.wi_0",
    "layers.{i}.ffn.up": f"{_FEED_FORWARD}.DenseReluDense.wi_1",
    "layers.{i}.ffn.down": f"{_FEED_FORWARD}.DenseReluDense.wo",
    "layers.{i}.ffn.norm": f"{_FEED_FORWARD}.layer_norm",
    "final_norm": "encoder.final_layer_norm",
}
CLASSES = {"t5": "T5", "mt5": "MT5"}
ENCODER = ("shared.", "encoder.")
TABLES = ("encoder.embed_tokens.weight",)  # the shared table again
HEADS = {"ForTokenClassification": TOKENS}

ARCHITECTURE = Architecture(
    classes=CLASSES,
    spec=spec,
    names=NAMES,
    encoder=ENCODER,
    unused=TABLES,
    heads=HEADS,
    accepts=is_gated,
)
_FIRST_NAMES = {**NAMES, "layers.{i}.ffn.up": f"{_FEED_FORWARD}.DenseReluDense.wi"}
del _FIRST_NAMES["layers.{i}.ffn.gate"]
FIRST_ARCHITECTURE = Architecture(
    classes=CLASSES,
    spec=spec,
    names=_FIRST_NAMES,
    encoder=ENCODER,
    unused=TABLES,
    heads=HEADS,
)
