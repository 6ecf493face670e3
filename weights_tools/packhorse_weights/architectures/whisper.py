"""Whisper (Radford et al. 2022): an encoder of 30 seconds of audio, a decoder that writes text and
times; and models distilled from it, which have fewer layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.architectures.fairseq import side_names
from packhorse_weights.architectures.heads import TextHead
from packhorse_weights.config import MOST_LAYERS, Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec, from_encoder_decoder
from packhorse_weights.tensor import Tensor


def spec(model_type: str, config: Config) -> Spec:
    if config.class_name.endswith(("ForAudioClassification", "ForCausalLM")):
        raise CheckpointError(
            f"{config.where}: {config.class_name!r:.80} is not supported; Whisper is read as "
            "WhisperForConditionalGeneration"
        )
    config.refuse("scale_embedding")
    hidden = config.integer("d_model")
    activation = config.choice("activation_function", ACTIVATIONS, "gelu")

    def side(name: str, positions: int, stem: dict[str, Any]) -> Spec:
        heads = config.integer(f"{name}_attention_heads")
        if hidden % heads:
            raise CheckpointError(
                f"{config.where}: d_model {hidden} is not a multiple of {name}_attention_heads "
                f"{heads}"
            )
        return {
            "family": model_type,
            **stem,
            "hidden_size": hidden,
            "num_layers": config.integer(f"{name}_layers", high=MOST_LAYERS),
            "num_heads": heads,
            "intermediate_size": config.integer(f"{name}_ffn_dim"),
            "max_seqlen": positions,
            "norm": {"kind": "layer", "placement": "pre", "eps": 1e-5, "embeddings": False},
            "attention": {
                "mask": "causal" if name == "decoder" else "bidirectional",
                "key_bias": False,
            },
            "ffn": {"kind": "plain", "activation": activation},
        }

    heard = config.tokens("max_source_positions", default=1500, high=1 << 20)
    written = config.tokens("max_target_positions", default=448, high=1 << 20)
    audio = {
        "features": config.integer("num_mel_bins", default=80),
        "activation": activation,
        "positions": {"kind": "learned", "count": heard},
    }
    words = {
        "vocab_size": config.tokens("vocab_size"),
        "positions": {"kind": "learned", "count": written},
    }
    encoder = side("encoder", heard, {"audio": audio})
    return from_encoder_decoder(encoder, side("decoder", written, words))


def text_head(config: Config, tensors: Mapping[str, Tensor]) -> Spec:
    tied = config.boolean("tie_word_embeddings", True) or "proj_out.weight" not in tensors
    return {"tied": True} if tied else {}


ARCHITECTURE = Architecture(
    classes={"whisper": "Whisper"},
    spec=spec,
    names={
        **side_names("encoder"),
        **side_names("decoder"),
        "encoder.embeddings.convolution.0": "encoder.conv1",
        "encoder.embeddings.convolution.1": "encoder.conv2",
        "decoder.embeddings.word": "decoder.embed_tokens.weight",
    },
    encoder=("encoder.", "decoder."),
    text_head=TextHead(text_head, {"lm.decoder.weight": "proj_out.weight"}),
)
