"""SigLIP (Zhai et al. 2023) and SigLIP 2 (Tschannen et al. 2025): encoders of images, pooled by
attention of a learned query, and of texts, whose tokens see the padding behind them.

SigLIP 2 with one size of images is stored as SigLIP. Its other form, NaFlex, takes patches of any
grid, and smooths positions where it shrinks the table."""

from typing import Any

import numpy as np

from packhorse_weights.architectures import vision
from packhorse_weights.architectures.base import Architecture, Pooled, with_defaults
from packhorse_weights.architectures.clip import LAYERS, TEXT_NAMES
from packhorse_weights.architectures.heads import Head
from packhorse_weights.architectures.towers import projected, similarity
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_TABLE = "embeddings.position_embedding.weight"
IMAGE_NAMES = {
    "embeddings.patch": "embeddings.patch_embedding",
    "embeddings.position": _TABLE,
    **LAYERS,
    "final_norm": "post_layernorm",
}
_PROBE = {
    "probe.query": "head.query",
    "probe.key": "head.key",
    "probe.value": "head.value",
    "probe.output": "head.attention.out_proj",
    "probe.norm": "head.layernorm",
    "probe.up": "head.mlp.fc1",
    "probe.down": "head.mlp.fc2",
}
_IN = "head.attention.in_proj_"


def text_spec(model_type: str, config: Config) -> Spec:
    config = vision.with_sizes(with_defaults(config, vocab_size=32000, max_position_embeddings=64))
    count = config.tokens("max_position_embeddings")
    return {
        **vision.layers("siglip", config, eps=1e-6, activation="gelu_pytorch_tanh"),
        "type_vocab_size": 0,
        "positions": {"kind": "learned", "count": count},
        "max_seqlen": count,
        "text": {"pad_to": count},
    }


def image_spec(model_type: str, config: Config) -> Spec:
    config = vision.with_sizes(config)
    naflex = model_type.startswith("siglip2")
    if naflex:
        side = round(config.integer("num_patches", default=256) ** 0.5)
        if side * side != config.integer("num_patches", default=256):
            raise CheckpointError(f"{config.where}: num_patches is not a square")
        pixels = vision.patch_size(config, 16)
        config = Config({**config.fields, "image_size": side * pixels}, config.where)
    resize = "linear_antialias" if naflex else "cubic"
    described = vision.stem(config, patch=16, image=224, prefix=0, resize=resize)
    if naflex:
        described["image"]["flexible"] = True
    return {
        **vision.layers("siglip", config, eps=1e-6, activation="gelu_pytorch_tanh"),
        **described,
    }


def made_image(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    patch = f"{prefix}{IMAGE_NAMES['embeddings.patch']}.weight"
    weight = vision.flattened(tensors[patch])
    result = {patch: weight}
    if len(tensors[patch].shape) == 2:  # NaFlex: channels are last in a patch
        channels = config.integer("num_channels", default=3, high=1 << 10)
        pixels = vision.patch_size(config, 16)
        if weight.shape[1] == channels * pixels * pixels:
            cube = weight.data.reshape(-1, pixels, pixels, channels).transpose(0, 3, 1, 2)
            flat = np.ascontiguousarray(cube).reshape(weight.shape)
            result[patch] = Tensor(flat, weight.dtype)
    weights = tensors.get(f"{prefix}{_IN}weight")
    bias, probe = (tensors.get(prefix + name) for name in (f"{_IN}bias", "head.probe"))
    if probe is None or weights is None or bias is None or len(weights.shape) != 2:
        return result
    width = weights.shape[1]
    for i, name in ((1, "key"), (2, "value")):
        result[f"{prefix}head.{name}.weight"] = vision.rows(weights, i * width, width)
        part = bias.data[i * width : (i + 1) * width]
        result[f"{prefix}head.{name}.bias"] = Tensor(part, bias.dtype)
    query = vision.values(vision.rows(weights, 0, width)).astype(np.float64)
    row = vision.values(probe).reshape(-1) @ query.T + vision.values(bias)[:width]
    result[f"{prefix}head.query"] = Tensor(row.astype(np.float32), "float32")
    return result


def pooled_text(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    fields = similarity(tensors, "sigmoid")
    return projected("last", "the last token, of 64", f"{prefix}head", tensors, fields)


def pooled_image(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    fields = similarity(tensors, "sigmoid")
    if f"{prefix}head.query" not in tensors:
        return Pooled({"pooling": "mean", "normalize": False}, "no head", fields=fields)
    config = vision.with_sizes(config)
    options: dict[str, Any] = vision.layers("", config, eps=1e-6, activation="gelu_pytorch_tanh")
    head = {
        "num_heads": options["num_heads"],
        "size": options["intermediate_size"],
        "activation": options["ffn"]["activation"],
    }
    embedding = {"pooling": "probe", "normalize": bool(fields)}
    names = {ours: prefix + theirs for ours, theirs in _PROBE.items()}
    return Pooled(embedding, "attention of the head's query", names, {"probe": head}, fields)


TEXT = Architecture(
    classes={"siglip_text_model": "SiglipText", "siglip2_text_model": "Siglip2Text"},
    spec=text_spec,
    names=TEXT_NAMES,
    encoder=("embeddings.", "encoder."),
    unused=("embeddings.position_ids",),
    pooled=pooled_text,
)
IMAGES = Architecture(
    classes={"siglip_vision_model": "SiglipVision", "siglip2_vision_model": "Siglip2Vision"},
    spec=image_spec,
    names=IMAGE_NAMES,
    encoder=("embeddings.", "encoder."),
    unused=("embeddings.position_ids", "head.probe", f"{_IN}weight", f"{_IN}bias"),
    heads={
        "ForImageClassification": Head(
            lambda config: {"input": "mean"}, {"classifier": "classifier"}
        )
    },
    pooled=pooled_image,
    made=made_image,
)
