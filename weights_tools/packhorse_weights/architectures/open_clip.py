"""CLIP as OpenCLIP stores it: `open_clip_config.json` in place of config.json, queries, keys and
values in one matrix, and projections as [in, out]. Towers of timm and of transformers are
refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packhorse_weights.architectures import vision
from packhorse_weights.architectures.base import Architecture, Pooled
from packhorse_weights.architectures.towers import projected, similarity
from packhorse_weights.config import MOST_LAYERS, Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

CONFIG = "open_clip_config.json"
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_LAYER = "transformer.resblocks.{i}"
_JOINED = f"{_LAYER}.attn.in_proj"
_UP, _DOWN = f"{_LAYER}.mlp.c_fc", f"{_LAYER}.mlp.c_proj"
_LAYERS = {
    "layers.{i}.attention.qkv": _JOINED,
    "layers.{i}.attention.output": f"{_LAYER}.attn.out_proj",
    "layers.{i}.attention.norm": f"{_LAYER}.ln_1",
    "layers.{i}.ffn.up": _UP,
    "layers.{i}.ffn.down": _DOWN,
    "layers.{i}.ffn.norm": f"{_LAYER}.ln_2",
}
_TEXT_PROJECTION, _IMAGE_PROJECTION = "text_projection", "proj"
# Fields that change what a tower computes, with the values that do not.
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "timm_model_name": (),
    "hf_model_name": (),
    "attentional_pool": (),
    "no_ln_pre": (),
    "ls_init_value": (),
    "final_ln_after_pool": (),
    "output_tokens": (),
    "embed_cls": (),
    "no_causal_mask": (),
    "proj_bias": (),
    "norm_kwargs": ({},),
    "act_kwargs": ({},),
    "pos_embed_type": ("learnable",),
    "pool_type": ("tok", "argmax"),
    "text_mask": ("first",),
}


def tower_config(fields: Mapping[str, Any], where: str, tower: str | None) -> Config:
    """The config of one tower, under the names of transformers."""
    model = Config(fields, where).section("model_cfg")
    tower = tower or "vision"
    part = model.section(f"{tower}_cfg")
    if not part.fields:
        raise CheckpointError(f"{where}: model_cfg: no {tower}_cfg")
    for name, harmless in _REFUSED.items():
        part.refuse(name, *harmless)
    for name in ("custom_text", "init_logit_bias"):
        model.refuse(name)
    width = part.integer("width", default=768 if tower == "vision" else 512)
    ratio = part.positive("mlp_ratio", 4.0)
    heads = part.integer("heads", default=8)
    if tower == "vision":
        heads = max(1, width // part.integer("head_width", default=64))
    made = {
        "model_type": f"open_clip_{tower}",
        "hidden_size": width,
        "num_hidden_layers": part.integer("layers", default=12, high=MOST_LAYERS),
        "num_attention_heads": heads,
        "intermediate_size": int(width * ratio),
        "hidden_act": "quick_gelu" if model.boolean("quick_gelu", False) else "gelu",
        "image_size": part.fields.get("image_size"),
        "patch_size": part.fields.get("patch_size"),
        "vocab_size": part.fields.get("vocab_size", 49408),
        "max_position_embeddings": part.fields.get("context_length", 77),
    }
    made = {name: value for name, value in made.items() if value is not None}
    return Config(made, f"{where}: {tower}_cfg")


def text_spec(model_type: str, config: Config) -> Spec:
    count = config.tokens("max_position_embeddings")
    return {
        **vision.layers("open_clip", config, eps=1e-5, activation="gelu"),
        "type_vocab_size": 0,
        "attention": {"mask": "causal"},
        "positions": {"kind": "learned", "count": count},
        "max_seqlen": count,
    }


def image_spec(model_type: str, config: Config) -> Spec:
    return {
        **vision.layers("open_clip", config, eps=1e-5, activation="gelu", stem_norm=True),
        **vision.stem(config, patch=32, image=224, prefix=1, resize="cubic", bias=False),
    }


def _made(
    config: Config, prefix: str, tensors: vision.Tensors, projection: str
) -> dict[str, Tensor]:
    result = vision.made_quick_gelu(prefix, tensors, config, _UP, _DOWN, "gelu")
    for i in range(config.integer("num_hidden_layers", high=MOST_LAYERS)):
        joined = prefix + _JOINED.replace("{i}", str(i))
        for end in ("weight", "bias"):
            if f"{joined}_{end}" in tensors:
                result[f"{joined}.{end}"] = tensors[f"{joined}_{end}"]
    matrix = tensors.get(prefix + projection)
    if matrix is not None and len(matrix.shape) == 2:
        turned = Tensor(np.ascontiguousarray(matrix.data.T), matrix.dtype)
        result[f"{prefix}{projection}.weight"] = turned
    return result


def made_text(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    return _made(config, prefix, tensors, _TEXT_PROJECTION)


def made_image(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    result = _made(config, prefix, tensors, _IMAGE_PROJECTION)
    patch = f"{prefix}conv1.weight"
    result[patch] = vision.flattened(tensors[patch])
    names = ("positional_embedding", "class_embedding")
    positions, token = (tensors.get(prefix + name) for name in names)
    if positions is not None and token is not None:
        result[prefix + "prefix"] = vision.prefixed([token], positions, 1)
        result[prefix + "patch_positions"] = vision.rows(positions, 1)
    return result


def pooled_text(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    why, layer = "the last token, which ends the text", prefix + _TEXT_PROJECTION
    return projected("last", why, layer, tensors, similarity(tensors, "softmax"))


def pooled_image(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    layer = prefix + _IMAGE_PROJECTION
    return projected("cls", "the class token", layer, tensors, similarity(tensors, "softmax"))


_UNUSED = (f"{_JOINED}_weight", f"{_JOINED}_bias")
TEXT = Architecture(
    classes={"open_clip_text": "OpenCLIPText"},
    spec=text_spec,
    names={
        "embeddings.word": "token_embedding.weight",
        "embeddings.position": "positional_embedding",
        **_LAYERS,
        "final_norm": "ln_final",
    },
    encoder=("token_embedding.", "positional_embedding", "transformer.", "ln_final."),
    unused=_UNUSED,
    pooled=pooled_text,
    made=made_text,
)
IMAGES = Architecture(
    classes={"open_clip_vision": "OpenCLIPVision"},
    spec=image_spec,
    names={
        "embeddings.patch": "conv1",
        "embeddings.prefix": "prefix",
        "embeddings.position": "patch_positions",
        "embeddings.norm": "ln_pre",
        **_LAYERS,
        "final_norm": "ln_post",
    },
    encoder=("",),
    unused=(
        *_UNUSED,
        "positional_embedding",
        "class_embedding",
        "proj",
        "proj.weight",
    ),
    pooled=pooled_image,
    made=made_image,
)
