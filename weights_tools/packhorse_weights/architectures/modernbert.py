"""ModernBERT (Warner et al. 2024): pre-norm, rotary positions, gated feed-forward blocks; most
layers have a window."""

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import (
    Architecture,
    local_layers,
    refuse_variants,
    sizes,
)
from packhorse_weights.architectures.heads import Head, MaskedLm, Options
from packhorse_weights.architectures.rope import of_layers, rope_theta
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec


def _thetas(config: Config) -> tuple[float, float]:
    """Returns theta of layers without a window and theta of layers with one, from either form of a
    config."""
    whole = of_layers(config, "full_attention", "global_rope_theta", scaled=True)
    local = of_layers(config, "sliding_attention", "local_rope_theta", scaled=True)
    return rope_theta(whole, 160000.0), rope_theta(local, 10000.0)


def spec(model_type: str, config: Config) -> Spec:
    refuse_variants(config)
    result = sizes(model_type, config)
    window = config.tokens("local_attention", default=128)
    if window % 2:
        raise CheckpointError(f"{config.where}: local_attention {window} is not even")
    every = config.integer("global_attn_every_n_layers", default=3)
    local = [i for i in range(result["num_layers"]) if i % every]
    theta, local_theta = _thetas(config)
    mlp_bias = config.boolean("mlp_bias", False)
    attention_bias = config.boolean("attention_bias", False)
    return {
        **result,
        "type_vocab_size": 0,
        "max_seqlen": config.tokens("max_position_embeddings", default=8192),
        "positions": {"kind": "none"},
        **local_layers(config, result, window // 2, local, "local"),
        "ropes": {"local": {"theta": local_theta}},
        "norm": {
            "kind": "layer",
            "placement": "pre",
            "eps": config.number("norm_eps", 1e-5),
            "bias": config.boolean("norm_bias", False),
            "first_attention": False,
        },
        "attention": {
            "mask": "bidirectional",
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "rope": {"theta": theta},
        },
        "ffn": {
            "kind": "gated",
            "activation": config.choice("hidden_activation", ACTIVATIONS, "gelu"),
            "up_bias": mlp_bias,
            "down_bias": mlp_bias,
        },
    }


def _dense(config: Config) -> Options:
    return {
        "activation": config.choice("classifier_activation", ACTIVATIONS, "gelu"),
        "bias": config.boolean("classifier_bias", False),
        "norm": True,
    }


def _sequence_options(config: Config) -> Options:
    pooling = config.choice("classifier_pooling", {"cls": "cls", "mean": "mean"}, "cls")
    return {"input": pooling, "dense": _dense(config)}


def _token_options(config: Config) -> Options:
    return {"input": "tokens", "dense": _dense(config)}


def _masked_lm_options(config: Config) -> Options:
    return {
        "activation": config.choice("classifier_activation", ACTIVATIONS, "gelu"),
        "dense_bias": config.boolean("classifier_bias", False),
        "decoder_bias": config.boolean("decoder_bias", True),
    }


_HEAD = {
    "classifier.dense": "head.dense",
    "classifier.norm": "head.norm",
    "classifier": "classifier",
}

ARCHITECTURE = Architecture(
    classes={"modernbert": "ModernBert"},
    spec=spec,
    names={
        "embeddings.word": "embeddings.tok_embeddings.weight",
        "embeddings.norm": "embeddings.norm",
        "layers.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
        "layers.{i}.attention.output": "layers.{i}.attn.Wo",
        "layers.{i}.attention.norm": "layers.{i}.attn_norm",
        "layers.{i}.ffn.gate_up": "layers.{i}.mlp.Wi",
        "layers.{i}.ffn.down": "layers.{i}.mlp.Wo",
        "layers.{i}.ffn.norm": "layers.{i}.mlp_norm",
        "final_norm": "final_norm",
    },
    encoder=("embeddings.", "layers.", "final_norm."),
    heads={
        "ForSequenceClassification": Head(_sequence_options, _HEAD),
        "ForTokenClassification": Head(_token_options, _HEAD),
        "ForQuestionAnswering": Head(_token_options, _HEAD, labels=("start", "end")),
    },
    masked_lm=MaskedLm(
        _masked_lm_options,
        {
            "masked_lm.dense": "head.dense",
            "masked_lm.norm": "head.norm",
            "masked_lm.decoder": "decoder",
        },
    ),
)
