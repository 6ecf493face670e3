"""CLIP (Radford et al. 2021): an encoder of images, and one of texts whose tokens see none that
follow. Each is a model of its own; `towers.py` says which is meant."""

from packhorse_weights.architectures import vision
from packhorse_weights.architectures.base import Architecture, Pooled, with_defaults
from packhorse_weights.architectures.towers import projected, similarity
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_LAYER = "encoder.layers.{i}"
LAYERS = {
    "layers.{i}.attention.query": f"{_LAYER}.self_attn.q_proj",
    "layers.{i}.attention.key": f"{_LAYER}.self_attn.k_proj",
    "layers.{i}.attention.value": f"{_LAYER}.self_attn.v_proj",
    "layers.{i}.attention.output": f"{_LAYER}.self_attn.out_proj",
    "layers.{i}.attention.norm": f"{_LAYER}.layer_norm1",
    "layers.{i}.ffn.up": f"{_LAYER}.mlp.fc1",
    "layers.{i}.ffn.down": f"{_LAYER}.mlp.fc2",
    "layers.{i}.ffn.norm": f"{_LAYER}.layer_norm2",
}
TEXT_NAMES = {
    "embeddings.word": "embeddings.token_embedding.weight",
    "embeddings.position": "embeddings.position_embedding.weight",
    **LAYERS,
    "final_norm": "final_layer_norm",
}
_TABLE, _CLASS = "embeddings.position_embedding.weight", "embeddings.class_embedding"
IMAGE_NAMES = {
    "embeddings.patch": "embeddings.patch_embedding",
    "embeddings.prefix": "embeddings.prefix",
    "embeddings.position": "embeddings.patch_positions",
    "embeddings.norm": "pre_layrnorm",
    **LAYERS,
    "final_norm": "post_layernorm",
}


def text_config(config: Config) -> Config:
    return with_defaults(
        config,
        vocab_size=49408,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=8,
        max_position_embeddings=77,
    )


def text_spec(model_type: str, config: Config) -> Spec:
    config = text_config(config)
    count = config.tokens("max_position_embeddings")
    described = vision.layers("clip", config, eps=1e-5, activation="quick_gelu")
    return {
        **described,
        "type_vocab_size": 0,
        "attention": {"mask": "causal"},
        "positions": {"kind": "learned", "count": count},
        "max_seqlen": count,
    }


def image_spec(model_type: str, config: Config) -> Spec:
    config = vision.with_sizes(config)
    return {
        **vision.layers("clip", config, eps=1e-5, activation="quick_gelu", stem_norm=True),
        **vision.stem(config, patch=32, image=224, prefix=1, resize="cubic", bias=False),
    }


def made_text(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    config = text_config(config)
    up, down = LAYERS["layers.{i}.ffn.up"], LAYERS["layers.{i}.ffn.down"]
    return vision.made_quick_gelu(prefix, tensors, config, up, down, "quick_gelu")


def made_image(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    config = vision.with_sizes(config)
    up, down = LAYERS["layers.{i}.ffn.up"], LAYERS["layers.{i}.ffn.down"]
    result = vision.made_quick_gelu(prefix, tensors, config, up, down, "quick_gelu")
    patch = f"{prefix}{IMAGE_NAMES['embeddings.patch']}.weight"
    result[patch] = vision.flattened(tensors[patch])
    positions, token = (tensors.get(prefix + name) for name in (_TABLE, _CLASS))
    if positions is not None and token is not None:
        result[prefix + "embeddings.prefix"] = vision.prefixed([token], positions, 1)
        result[prefix + "embeddings.patch_positions"] = vision.rows(positions, 1)
    return result


def pooled_text(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    fields = similarity(tensors, "softmax")
    why = "the last token, which ends the text"
    return projected("last", why, "text_projection", tensors, fields)


def pooled_image(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    fields = similarity(tensors, "softmax")
    return projected("cls", "the class token", "visual_projection", tensors, fields)


TEXT = Architecture(
    classes={"clip_text_model": "CLIPText"},
    spec=text_spec,
    names=TEXT_NAMES,
    encoder=("embeddings.", "encoder."),
    unused=("embeddings.position_ids",),
    pooled=pooled_text,
    made=made_text,
)
IMAGES = Architecture(
    classes={"clip_vision_model": "CLIPVision"},
    spec=image_spec,
    names=IMAGE_NAMES,
    encoder=("embeddings.", "encoder."),
    unused=("embeddings.position_ids", _TABLE, _CLASS),
    pooled=pooled_image,
    made=made_image,
)
