"""BEiT (Bao et al. 2021): ViT whose attention knows the steps between patches by a table, of each
layer or of all."""

from packhorse_weights.architectures import vision
from packhorse_weights.architectures.base import Architecture, Pooled
from packhorse_weights.architectures.heads import Head, Options
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_LAYER = "encoder.layer.{i}"
_BIAS = "relative_position_bias.relative_position_bias_table"
NAMES = {
    "embeddings.patch": "embeddings.patch_embeddings.projection",
    "embeddings.prefix": "embeddings.prefix",
    "embeddings.position": "embeddings.patch_positions",
    "relative_bias": f"encoder.{_BIAS}",
    "layers.{i}.attention.query": f"{_LAYER}.attention.attention.query",
    "layers.{i}.attention.key": f"{_LAYER}.attention.attention.key",
    "layers.{i}.attention.value": f"{_LAYER}.attention.attention.value",
    "layers.{i}.attention.output": f"{_LAYER}.attention.output.dense",
    "layers.{i}.attention.norm": f"{_LAYER}.layernorm_before",
    "layers.{i}.attention.relative_bias": f"{_LAYER}.attention.attention.{_BIAS}",
    "layers.{i}.ffn.up": f"{_LAYER}.intermediate.dense",
    "layers.{i}.ffn.down": f"{_LAYER}.output.dense",
    "layers.{i}.ffn.norm": f"{_LAYER}.layernorm_after",
    "final_norm": "layernorm",
}
_SCALES = {
    f"{_LAYER}.attention.output.dense": f"{_LAYER}.lambda_1",
    f"{_LAYER}.output.dense": f"{_LAYER}.lambda_2",
}
_CLASS, _POSITIONS = "embeddings.cls_token", "embeddings.position_embeddings"
_INDEX = "relative_position_bias.relative_position_index"
_POOLER = "pooler.layernorm"


def _pools_patches(config: Config) -> bool:
    return config.boolean("use_mean_pooling", True)


def spec(model_type: str, config: Config) -> Spec:
    config = vision.with_sizes(config)
    absolute = config.boolean("use_absolute_position_embeddings", False)
    resize = "cubic" if absolute else None
    described = vision.layers(model_type, config, eps=1e-12, activation="gelu")
    stem = vision.stem(config, patch=16, image=224, prefix=1, resize=resize)
    described["attention"] |= {"qkv_bias": True, "key_bias": False}
    own, shared = (
        config.boolean(f"use_{name}relative_position_bias", False) for name in ("", "shared_")
    )
    if own or shared:
        if own and shared:
            raise CheckpointError(
                f"{config.where}: relative positions of each layer and of all, expected one kind"
            )
        rows, columns = (side // stem["image"]["patch_size"] for side in stem["image"]["size"])
        if rows != columns:
            raise CheckpointError(
                f"{config.where}: relative positions of {rows} x {columns} patches, expected a "
                "square"
            )
        term = {"kind": "grid", "rows": rows, "columns": columns}
        described["attention"]["score_term"] = term | ({"per_layer": True} if own else {})
    if _pools_patches(config):
        described["norm"]["final"] = False
    return {**described, **stem}


def made(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    result = vision.made_scales(prefix, tensors, vision.with_sizes(config), _SCALES)
    patch = f"{prefix}{NAMES['embeddings.patch']}.weight"
    result[patch] = vision.flattened(tensors[patch])
    positions, token = (tensors.get(prefix + name) for name in (_POSITIONS, _CLASS))
    if token is not None:
        result[prefix + "embeddings.prefix"] = vision.prefixed([token], positions, 1)
    if positions is not None:
        result[prefix + "embeddings.patch_positions"] = vision.rows(positions, 1)
    return result


def pooled(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    if not _pools_patches(config):
        return Pooled({"pooling": "cls", "normalize": False}, "the class token")
    embedding: Spec = {"pooling": "patch_mean", "normalize": False}
    if f"{prefix}{_POOLER}.weight" not in tensors:
        return Pooled(embedding, "the mean of patches")
    names = {"embedding.norm": prefix + _POOLER}
    return Pooled({**embedding, "norm": True}, "the mean of patches, with a norm", names)


def _options(config: Config) -> Options:
    return {"input": ["patch_mean"], "norm": True} if _pools_patches(config) else {"input": "cls"}


ARCHITECTURE = Architecture(
    classes={"beit": "Beit"},
    spec=spec,
    names=NAMES,
    encoder=("embeddings.", "encoder.", "layernorm."),
    unused=(
        *(_CLASS, _POSITIONS, "embeddings.mask_token", f"encoder.{_INDEX}"),
        *(f"{_LAYER}.attention.attention.{_INDEX}", *_SCALES.values()),
    ),
    heads={
        "ForImageClassification": Head(
            _options, {"classifier.norm": f"beit.{_POOLER}", "classifier": "classifier"}
        )
    },
    pooled=pooled,
    made=made,
)
