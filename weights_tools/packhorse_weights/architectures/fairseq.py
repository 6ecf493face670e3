"""Encoder-decoder models that come from fairseq or Marian, which transformers stores under names of
BART: BART itself, mBART, Pegasus, Marian, M2M100, NLLB, Blenderbot.

They differ in where norms stand, in positions and in activations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.architectures.heads import TextHead
from packhorse_weights.config import MOST_LAYERS, Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec, from_encoder_decoder
from packhorse_weights.tensor import Tensor

Positions = dict[str, Any]
_BIAS = "final_logits_bias"
SIDES = ("encoder", "decoder")


def positions(config: Config, offset: int, default: int = 1024) -> Positions:
    """Positions of a table whose first `offset` rows belong to no token."""
    count = config.tokens("max_position_embeddings", default=default, high=1 << 26)
    found: Positions = {"kind": "learned", "count": count + offset}
    return found | ({"offset": offset} if offset else {})


def spec(
    family: str,
    config: Config,
    where: Positions,
    *,
    placement: str,
    embedding_norm: bool,
    activation: str,
    scaled: bool = False,
    shared: bool = True,
) -> Spec:
    """The spec of such a model.

    where: positions of both stacks. placement: of norms. activation, scaled: the activation and
        `scale_embedding` where the config names none. shared: both sides have one table of words.

    Raises CheckpointError if the config asks for anything that the spec cannot express.
    """
    _refuse_other_classes(config)
    hidden = config.integer("d_model")
    chosen = config.choice("activation_function", ACTIVATIONS, activation)
    scale = math.sqrt(hidden) if config.boolean("scale_embedding", scaled) else 1.0

    def side(name: str) -> Spec:
        heads = config.integer(f"{name}_attention_heads")
        if hidden % heads:
            raise CheckpointError(
                f"{config.where}: d_model {hidden} is not a multiple of {name}_attention_heads "
                f"{heads}"
            )
        vocabulary = config.tokens("vocab_size")
        own = name == "decoder" and not shared
        return {
            "family": family,
            "vocab_size": config.tokens("decoder_vocab_size", vocabulary) if own else vocabulary,
            **({"words": "encoder"} if name == "decoder" and shared else {}),
            **({"embedding_scale": scale} if scale != 1.0 else {}),
            "hidden_size": hidden,
            "num_layers": config.integer(f"{name}_layers", high=MOST_LAYERS),
            "num_heads": heads,
            "intermediate_size": config.integer(f"{name}_ffn_dim"),
            "max_seqlen": where["count"] - where.get("offset", 0),
            "positions": where,
            "norm": {
                "kind": "layer",
                "placement": placement,
                "eps": 1e-5,
                "embeddings": embedding_norm,
            },
            "attention": {"mask": "causal" if name == "decoder" else "bidirectional"},
            "ffn": {"kind": "plain", "activation": chosen},
        }

    return from_encoder_decoder(side("encoder"), side("decoder"))


def _refuse_other_classes(config: Config) -> None:
    """Raises CheckpointError for classes that use the stacks for anything but text to text."""
    name = config.class_name
    for end in ("ForSequenceClassification", "ForQuestionAnswering", "ForCausalLM"):
        if name.endswith(end):
            raise CheckpointError(
                f"{config.where}: {name!r:.80} is not supported; a model of its kind is read for "
                "text to text alone, as ...ForConditionalGeneration"
            )


def side_names(side: str, *, final_norm: bool = True) -> dict[str, str]:
    """Our names -> transformers', of positions and layers of the encoder or the decoder."""
    layer = f"{side}.layers.{{i}}"
    found = {f"{side}.embeddings.position": f"{side}.embed_positions.weight"}
    blocks = {"attention": ("self_attn", "self_attn_layer_norm")}
    if side == "decoder":
        blocks["cross_attention"] = ("encoder_attn", "encoder_attn_layer_norm")
    for ours, (theirs, norm) in blocks.items():
        for part in ("query", "key", "value"):
            found[f"{layer}.{ours}.{part}"] = f"{layer}.{theirs}.{part[0]}_proj"
        found[f"{layer}.{ours}.output"] = f"{layer}.{theirs}.out_proj"
        found[f"{layer}.{ours}.norm"] = f"{layer}.{norm}"
    found[f"{layer}.ffn.up"] = f"{layer}.fc1"
    found[f"{layer}.ffn.down"] = f"{layer}.fc2"
    found[f"{layer}.ffn.norm"] = f"{layer}.final_layer_norm"
    if final_norm:
        found[f"{side}.final_norm"] = f"{side}.layer_norm"
    return found


def names(*, embedding_norm: bool, final_norm: bool, shared: bool = True) -> dict[str, str]:
    """Our names -> transformers'."""
    found: dict[str, str] = {}
    for side in SIDES:
        found |= side_names(side, final_norm=final_norm)
        if side == "encoder" or not shared:
            table = "shared" if shared else f"{side}.embed_tokens"
            found[f"{side}.embeddings.word"] = f"{table}.weight"
        if embedding_norm:
            found[f"{side}.embeddings.norm"] = f"{side}.layernorm_embedding"
    return found


ENCODER = ("shared.", "encoder.", "decoder.")
# The shared table again, and what older files hold of fairseq.
UNUSED = (
    "shared.weight",
    *(f"{side}.embed_tokens.weight" for side in SIDES),
    *(f"{side}.version" for side in SIDES),
)


def sines(count: int, width: int) -> Tensor:
    """Positions of Marian and Pegasus: sines of all frequencies, then cosines (Vaswani et al. 2017,
    not interleaved)."""
    half = (width + 1) // 2
    angles = np.arange(count)[:, None] / np.power(10000.0, 2 * np.arange(half) / width)
    table = np.concatenate([np.sin(angles), np.cos(angles[:, : width - half])], axis=1)
    return Tensor(table.astype(np.float32), "float32")


def add_sines(config: Config, prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tables of positions, which transformers computes whatever a file holds."""
    count = config.tokens("max_position_embeddings", default=1024, high=1 << 26)
    table = sines(count, config.integer("d_model"))
    return {f"{prefix}{side}.embed_positions.weight": table for side in SIDES}


def text_head(config: Config, tensors: Mapping[str, Tensor]) -> Spec:
    """`heads.lm` of the spec. A bias of zeros, which most files hold, is left out."""
    found: Spec = {}
    if config.boolean("tie_word_embeddings", True) or "lm_head.weight" not in tensors:
        found["tied"] = True
    bias = tensors.get(_BIAS)
    if bias is not None and any(block.any() for block in bias.blocks()):
        found["bias"] = True
    return found


def flat_bias(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The bias of logits [1, vocabulary] as a vector."""
    bias = tensors.get(_BIAS)
    if bias is None or len(bias.shape) != 2 or bias.shape[0] != 1:
        return {}
    return {_BIAS: Tensor(bias.data.reshape(-1), bias.dtype)}


HEAD = TextHead(text_head, {"lm.decoder.weight": "lm_head.weight", "lm.decoder.bias": _BIAS})
