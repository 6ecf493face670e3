"""T5, T5 1.1, FLAN-T5 and mT5 with their decoders, for text to text. Both stacks read one table of
words; that of T5 1.1 and its successors is not the layer over the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse_weights.architectures import t5
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.architectures.heads import TextHead
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec, from_encoder_decoder
from packhorse_weights.tensor import Tensor


def generates(config: Config) -> bool:
    return config.class_name.endswith("ForConditionalGeneration")


def both(model_type: str, config: Config, *, per_layer: bool = False) -> Spec:
    """The spec of both stacks. per_layer: each layer has biases of distances of its own."""
    encoder, decoder = (t5.side(model_type, config, side) for side in ("encoder", "decoder"))
    decoder["words"] = "encoder"
    for one in (encoder, decoder) if per_layer else ():
        one["attention"]["score_term"]["per_layer"] = True
    return from_encoder_decoder(encoder, decoder)


def spec(model_type: str, config: Config) -> Spec:
    return both(model_type, config)


def text_head(config: Config, tensors: Mapping[str, Tensor]) -> Spec:
    """`heads.lm` of the spec. Files that transformers 4 wrote say by tie_word_embeddings whether
    outputs are scaled; version 5 has a field for it, and ties where there is no other layer. There
    mT5 never scales."""
    tie = config.boolean("tie_word_embeddings", True)
    scaled = config.boolean("scale_decoder_outputs", tie)
    is_mt5 = config.fields.get("model_type") == "mt5"
    tied = "lm_head.weight" not in tensors or (scaled and not is_mt5)
    found: Spec = {"tied": True} if tied else {}
    return found | ({"scale": config.integer("d_model") ** -0.5} if scaled and not is_mt5 else {})


HEAD = TextHead(text_head, {"lm.decoder.weight": "lm_head.weight"})


def names(gated: bool, *, per_layer: bool = False) -> dict[str, str]:
    """Our names -> transformers'."""
    of_encoder = (t5.ARCHITECTURE if gated else t5.FIRST_ARCHITECTURE).names
    found: dict[str, str] = {}
    for ours, theirs in of_encoder.items():
        found[f"encoder.{ours}"] = theirs
        if ours == "embeddings.word":
            continue
        last = ".layer.2" if ".ffn." in ours else ".layer.0"
        theirs = theirs.replace("encoder.", "decoder.", 1)
        found[f"decoder.{ours}"] = theirs.replace(".layer.1", last)
        if ".attention." in ours:
            cross = theirs.replace(".layer.0", ".layer.1").replace("SelfAtt", "EncDecAtt")
            found[f"decoder.{ours.replace('.attention.', '.cross_attention.')}"] = cross
    for side in ("encoder", "decoder") if per_layer else ():
        bias = found.pop(f"{side}.relative_bias").replace("block.0", "block.{i}")
        found[f"{side}.layers.{{i}}.attention.relative_bias"] = bias
    return found


UNUSED = (
    *t5.TABLES,
    "decoder.embed_tokens.weight",
    # In the first checkpoints, which computed nothing with it.
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)


def architecture(gated: bool) -> Architecture:
    return Architecture(
        classes=t5.CLASSES,
        spec=spec,
        names=names(gated),
        encoder=(*t5.ENCODER, "decoder."),
        unused=UNUSED,
        text_head=HEAD,
        accepts=lambda config: generates(config) and t5.is_gated(config) == gated,
    )


ARCHITECTURE = architecture(gated=True)
FIRST_ARCHITECTURE = architecture(gated=False)
