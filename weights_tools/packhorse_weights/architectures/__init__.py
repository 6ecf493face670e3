"""The model families that checkpoints may come from: one declarative file each.

To add a family, add a file with an ARCHITECTURE (base.py says what that holds) and list it in
FAMILIES.
"""

from __future__ import annotations

from packhorse_weights.architectures import (
    albert,
    baichuan,
    bart,
    beit,
    bert,
    blenderbot,
    chinese_clip,
    clip,
    deberta,
    decoder,
    dinov2,
    dinov3,
    distilbert,
    electra,
    gemma,
    gpt2,
    gpt_neox,
    gptj,
    gte,
    jina_bert,
    m2m_100,
    marian,
    mbart,
    megatron_bert,
    modernbert,
    mpnet,
    nomic_bert,
    open_clip,
    opt,
    pages,
    pegasus,
    phi3,
    roberta,
    siglip,
    smollm3,
    t5,
    t5_decoder,
    umt5,
    vit,
    whisper,
    zaya,
)
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.architectures.refused import refuse_known
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError

FAMILIES: tuple[Architecture, ...] = (
    jina_bert.ARCHITECTURE,
    bert.ARCHITECTURE,
    megatron_bert.ARCHITECTURE,
    roberta.ARCHITECTURE,
    distilbert.ARCHITECTURE,
    electra.ARCHITECTURE,
    albert.ARCHITECTURE,
    mpnet.ARCHITECTURE,
    modernbert.ARCHITECTURE,
    nomic_bert.ARCHITECTURE,
    gte.ARCHITECTURE,
    deberta.ARCHITECTURE,
    deberta.FIRST_ARCHITECTURE,
    t5_decoder.ARCHITECTURE,
    t5_decoder.FIRST_ARCHITECTURE,
    umt5.ARCHITECTURE,
    umt5.WITH_DECODER,
    bart.ARCHITECTURE,
    mbart.ARCHITECTURE,
    pegasus.ARCHITECTURE,
    blenderbot.ARCHITECTURE,
    marian.ARCHITECTURE,
    marian.OF_TWO_TABLES,
    m2m_100.ARCHITECTURE,
    t5.ARCHITECTURE,
    t5.FIRST_ARCHITECTURE,
    decoder.ARCHITECTURE,
    baichuan.ARCHITECTURE,
    smollm3.ARCHITECTURE,
    phi3.ARCHITECTURE,
    gemma.ARCHITECTURE,
    gpt2.ARCHITECTURE,
    opt.ARCHITECTURE,
    gpt_neox.ARCHITECTURE,
    gptj.ARCHITECTURE,
    whisper.ARCHITECTURE,
    zaya.ARCHITECTURE,
    vit.ARCHITECTURE,
    dinov2.ARCHITECTURE,
    dinov2.GATED,
    dinov3.ARCHITECTURE,
    beit.ARCHITECTURE,
    clip.IMAGES,
    clip.TEXT,
    chinese_clip.IMAGES,
    chinese_clip.TEXT,
    siglip.IMAGES,
    siglip.TEXT,
    open_clip.IMAGES,
    open_clip.TEXT,
    pages.MODERN_IMAGES,
    pages.MODERN_TEXT,
    pages.PALI_IMAGES,
    pages.PALI_TEXT,
    pages.SMOL_IMAGES,
    pages.SMOL_TEXT,
)


def known_model_types() -> list[str]:
    return list(dict.fromkeys(model_type for family in FAMILIES for model_type in family.classes))


def as_encoder(config: Config) -> Config:
    """The config of a model that embeds by files of sentence-transformers, which takes the encoder
    of T5 whatever class the config names."""
    if config.fields.get("model_type") not in ("t5", "mt5", "umt5"):
        return config
    return Config({**config.fields, "architectures": ["T5EncoderModel"]}, config.where)


def find_architecture(config: Config) -> tuple[str, Architecture]:
    """(model type, its family), by `model_type` or, in configs without it, by `architectures`.

    Raises CheckpointError that lists the known model types.
    """
    model_type = config.fields.get("model_type")
    classes = config.fields.get("architectures")
    for family in FAMILIES:
        if not family.accepts(config):
            continue
        for known, class_prefix in family.classes.items():
            if model_type == known:
                return known, family
            if model_type is None and isinstance(classes, list) and classes:
                name = str(classes[0])
                rest = name.removeprefix(class_prefix)
                if rest != name and rest.startswith(("Model", "For", "LMHead")):
                    return known, family
    refuse_known(config)
    raise CheckpointError(
        f"{config.where}: unknown architecture: model_type {model_type!r:.80}, architectures "
        f"{classes!r:.80}; known model types: {', '.join(known_model_types())}"
    )
