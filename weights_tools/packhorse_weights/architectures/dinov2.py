"""DINOv2 (Oquab et al. 2023), with registers (Darcet et al. 2023) or without: ViT with a factor for
each column of a block's output."""

from packhorse_weights.architectures import vision
from packhorse_weights.architectures.base import Architecture, Pooled
from packhorse_weights.architectures.heads import Head
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_REGISTERS = "dinov2_with_registers"
_LAYER = "encoder.layer.{i}"
NAMES = {
    "embeddings.patch": "embeddings.patch_embeddings.projection",
    "embeddings.prefix": "embeddings.prefix",
    "embeddings.position": "embeddings.patch_positions",
    "layers.{i}.attention.query": f"{_LAYER}.attention.attention.query",
    "layers.{i}.attention.key": f"{_LAYER}.attention.attention.key",
    "layers.{i}.attention.value": f"{_LAYER}.attention.attention.value",
    "layers.{i}.attention.output": f"{_LAYER}.attention.output.dense",
    "layers.{i}.attention.norm": f"{_LAYER}.norm1",
    "layers.{i}.ffn.up": f"{_LAYER}.mlp.fc1",
    "layers.{i}.ffn.down": f"{_LAYER}.mlp.fc2",
    "layers.{i}.ffn.norm": f"{_LAYER}.norm2",
    "final_norm": "layernorm",
}
_GATED = {
    "layers.{i}.ffn.gate_up": f"{_LAYER}.mlp.weights_in",
    "layers.{i}.ffn.down": f"{_LAYER}.mlp.weights_out",
}
_SCALES = {
    f"{_LAYER}.attention.output.dense": f"{_LAYER}.layer_scale1.lambda1",
    f"{_LAYER}.mlp.fc2": f"{_LAYER}.layer_scale2.lambda1",
    f"{_LAYER}.mlp.weights_out": f"{_LAYER}.layer_scale2.lambda1",
}
_CLASS, _POSITIONS = "embeddings.cls_token", "embeddings.position_embeddings"
_UNUSED = (_CLASS, _POSITIONS, "embeddings.mask_token", "embeddings.register_tokens")


def is_gated(config: Config) -> bool:
    return config.boolean("use_swiglu_ffn", False)


def spec(model_type: str, config: Config) -> Spec:
    hidden = config.integer("hidden_size", default=768)
    inner = hidden * config.integer("mlp_ratio", default=4, high=64)
    if is_gated(config):
        inner = (inner * 2 // 3 + 7) // 8 * 8
    config = Config({**config.fields, "intermediate_size": inner}, config.where)
    registers = 0
    if model_type == _REGISTERS:
        registers = config.integer("num_register_tokens", default=4, low=0, high=1 << 10)
    antialias = "_antialias" if model_type == _REGISTERS else ""
    described = vision.layers(model_type, vision.with_sizes(config), eps=1e-6, activation="gelu")
    if is_gated(config):
        described["ffn"] = {"kind": "gated", "activation": "silu"}
    return {
        **described,
        **vision.stem(
            config, patch=14, image=224, prefix=1 + registers, resize=f"cubic{antialias}"
        ),
    }


def made(config: Config, prefix: str, tensors: vision.Tensors) -> dict[str, Tensor]:
    config = vision.with_sizes(config)
    result = vision.made_scales(prefix, tensors, config, _SCALES)
    patch = f"{prefix}{NAMES['embeddings.patch']}.weight"
    result[patch] = vision.flattened(tensors[patch])
    positions, token = (tensors.get(prefix + name) for name in (_POSITIONS, _CLASS))
    if positions is not None and token is not None:
        registers = tensors.get(prefix + "embeddings.register_tokens")
        tokens = [token] + ([] if registers is None else [registers])
        result[prefix + "embeddings.prefix"] = vision.prefixed(tokens, positions, 1)
        result[prefix + "embeddings.patch_positions"] = vision.rows(positions, 1)
    return result


def pooled(config: Config, prefix: str, tensors: vision.Tensors) -> Pooled:
    return Pooled({"pooling": "cls", "normalize": False}, "the class token")


def _architecture(gated: bool) -> Architecture:
    plain = {name: theirs for name, theirs in NAMES.items() if ".ffn.up" not in name}
    return Architecture(
        classes={"dinov2": "Dinov2", _REGISTERS: "Dinov2WithRegisters"},
        spec=spec,
        names={**plain, **_GATED} if gated else NAMES,
        encoder=("embeddings.", "encoder.", "layernorm."),
        unused=(*_UNUSED, *dict.fromkeys(_SCALES.values())),
        heads={
            "ForImageClassification": Head(
                lambda config: {"input": ["cls", "patch_mean"]}, {"classifier": "classifier"}
            )
        },
        pooled=pooled,
        made=made,
        accepts=lambda config: is_gated(config) == gated,
    )


ARCHITECTURE, GATED = _architecture(False), _architecture(True)
