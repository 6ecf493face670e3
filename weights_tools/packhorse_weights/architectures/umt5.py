"""UMT5 (Chung et al. 2023): T5 1.1 whose layers each have biases of distances of their own."""

from packhorse_weights.architectures import t5, t5_decoder
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec

_CLASSES = {"umt5": "UMT5"}
_BIAS = "encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"


def _gated(config: Config) -> Config:
    if not t5.is_gated(config):
        raise CheckpointError(f"{config.where}: UMT5 with feed-forward blocks that are not gated")
    return config


def spec(model_type: str, config: Config) -> Spec:
    found = t5.spec(model_type, _gated(config))
    found["attention"]["score_term"]["per_layer"] = True
    return found


def both(model_type: str, config: Config) -> Spec:
    return t5_decoder.both(model_type, _gated(config), per_layer=True)


_NAMES = {ours: theirs for ours, theirs in t5.NAMES.items() if ours != "relative_bias"}
ARCHITECTURE = Architecture(
    classes=_CLASSES,
    spec=spec,
    names={**_NAMES, "layers.{i}.attention.relative_bias": _BIAS},
    encoder=t5.ENCODER,
    unused=t5.TABLES,
    heads=t5.HEADS,
    accepts=lambda config: not t5_decoder.generates(config),
)
WITH_DECODER = Architecture(
    classes=_CLASSES,
    spec=both,
    names=t5_decoder.names(True, per_layer=True),
    encoder=(*t5.ENCODER, "decoder."),
    unused=t5_decoder.UNUSED,
    text_head=t5_decoder.HEAD,
    accepts=t5_decoder.generates,
)
