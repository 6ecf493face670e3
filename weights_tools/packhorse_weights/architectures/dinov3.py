"""DINOv3 ViT (Siméoni et al. 2025): ViT with registers, layer scale, and heads that are rotated by
the place of a patch in the image."""

from packhorse_weights.architectures import vision
from packhorse_weights.architectures.base import Architecture, Pooled
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_LAYER = "layer.{i}"
NAMES = {
    "embeddings.patch": "embeddings.patch_embeddings",
    "embeddings.prefix": "embeddings.prefix",
    "layers.{i}.attention.query": f"{_LAYER}.attention.q_proj",
    "layers.{i}.attention.key": f"{_LAYER}.attention.k_proj",
    "layers.{i}.attention.value": f"{_LAYER}.attention.v_proj",
    "layers.{i}.attention.output": f"{_LAYER}.attention.o_proj",
    "layers.{i}.attention.norm": f"{_LAYER}.norm1",
    "layers.{i}.ffn.gate": f"{_LAYER}.mlp.gate_proj",
    "layers.{i}.ffn.up": f"{_LAYER}.mlp.up_proj",
    "layers.{i}.ffn.down": f"{_LAYER}.mlp.down_proj",
    "layers.{i}.ffn.norm": f"{_LAYER}.norm2",
    "final_norm": "norm",
}
_SCALES = {
    f"{_LAYER}.attention.o_proj": f"{_LAYER}.layer_scale1.lambda1",
    f"{_LAYER}.mlp.down_proj": f"{_LAYER}.layer_scale2.lambda1",
}
_CLASS, _REGISTERS = "embeddings.cls_token", "embeddings.register_tokens"


def _with_sizes(config: Config) -> Config:
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return vision.with_sizes(config, **sizes)


def spec(model_type: str, config: Config) -> Spec:
    config = _with_sizes(config)
    bias, mlp_bias = (config.boolean(name, True) for name in ("query_bias", "mlp_bias"))
    if config.boolean("value_bias", True) != bias:
        raise CheckpointError(
            f"{config.where}: query_bias is {bias}, value_bias is not, expected both or neither"
        )
    described = vision.layers(model_type, config, eps=1e-5, activation="gelu")
    described["attention"] |= {
        "qkv_bias": bias,
        "key_bias": config.boolean("key_bias", False),
        "output_bias": config.boolean("proj_bias", True),
        "rope": {"theta": config.positive("rope_theta", 100.0), "grid": True},
    }
    gated = config.boolean("use_gated_mlp", False)
    described["ffn"] |= {
        "kind": "gated" if gated else "plain",
        "up_bias": mlp_bias,
        "down_bias": mlp_bias,
    }
    registers = config.integer("num_register_tokens", default=0, low=0, high=1 << 10)
    return {
        **described,
        **vision.stem(config, patch=16, image=224, prefix=1 + registers, resize=None),
    }


def made(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    result = vision.made_scales(prefix, tensors, _with_sizes(config), _SCALES)
    patch = f"{prefix}{NAMES['embeddings.patch']}.weight"
    result[patch] = vision.flattened(tensors[patch])
    tokens = [tensors.get(prefix + name) for name in (_CLASS, _REGISTERS)]
    found = [token for token in tokens if token is not None]
    result[prefix + "embeddings.prefix"] = vision.prefixed(found, None, 0)
    return result


def pooled(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    return Pooled({"pooling": "cls", "normalize": False}, "the class token")


ARCHITECTURE = Architecture(
    classes={"dinov3_vit": "DINOv3ViT"},
    spec=spec,
    names=NAMES,
    encoder=("embeddings.", "layer.", "norm."),
    unused=(_CLASS, _REGISTERS, "embeddings.mask_token", *_SCALES.values()),
    pooled=pooled,
    made=made,
)
