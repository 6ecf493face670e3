"""ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021), with a second token."""

import numpy as np

from packhorse_weights.architectures import vision
from packhorse_weights.architectures.base import Architecture, Pooled
from packhorse_weights.architectures.heads import Head
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

NAMES = {
    "embeddings.patch": "embeddings.patch_embeddings.projection",
    "embeddings.prefix": "embeddings.prefix",
    "embeddings.position": "embeddings.patch_positions",
    "layers.{i}.attention.query": "encoder.layer.{i}.attention.attention.query",
    "layers.{i}.attention.key": "encoder.layer.{i}.attention.attention.key",
    "layers.{i}.attention.value": "encoder.layer.{i}.attention.attention.value",
    "layers.{i}.attention.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention.norm": "encoder.layer.{i}.layernorm_before",
    "layers.{i}.ffn.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.ffn.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.ffn.norm": "encoder.layer.{i}.layernorm_after",
    "final_norm": "layernorm",
    "pooler": "pooler.dense",
}
_TOKENS = ("embeddings.cls_token", "embeddings.distillation_token")
_POSITIONS = "embeddings.position_embeddings"
_TEACHER = ("cls_classifier", "distillation_classifier")


def spec(model_type: str, config: Config) -> Spec:
    prefix = 2 if model_type == "deit" else 1
    return {
        **vision.layers(model_type, vision.with_sizes(config), eps=1e-12, activation="gelu"),
        **vision.stem(config, patch=16, image=224, prefix=prefix, resize="cubic"),
    }


def made(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    result = {}
    patch = f"{prefix}{NAMES['embeddings.patch']}.weight"
    positions = tensors.get(prefix + _POSITIONS)
    tokens = [tensors[prefix + name] for name in _TOKENS if prefix + name in tensors]
    if positions is not None and tokens:
        count = len(tokens)
        result[prefix + "embeddings.prefix"] = vision.prefixed(tokens, positions, count)
        result[prefix + "embeddings.patch_positions"] = vision.rows(positions, count)
    result[patch] = vision.flattened(tensors[patch])
    if all(f"{name}.weight" in tensors for name in _TEACHER):  # the mean of two classifiers
        for end in (".weight", ".bias"):
            halves = [vision.values(tensors[name + end]) / np.float32(2) for name in _TEACHER]
            joined = np.concatenate(halves, axis=1) if end == ".weight" else halves[0] + halves[1]
            result["classifier" + end] = Tensor(joined, "float32")
    return result


def pooled(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    return Pooled({"pooling": "cls", "normalize": False}, "the class token")


CLASSIFIER = Head(lambda config: {"input": "cls"}, {"classifier": "classifier"})
ARCHITECTURE = Architecture(
    classes={"vit": "ViT", "deit": "DeiT"},
    spec=spec,
    names=NAMES,
    encoder=("embeddings.", "encoder.", "layernorm."),
    unused=(*_TOKENS, _POSITIONS, "embeddings.mask_token"),
    heads={
        "ForImageClassification": CLASSIFIER,
        "ForImageClassificationWithTeacher": Head(
            lambda config: {"input": ["cls", "second"]}, {"classifier": "classifier"}
        ),
    },
    pooled=pooled,
    made=made,
)
