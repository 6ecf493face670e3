"""SmolLM3: a Llama that rotates three layers of four."""

from dataclasses import replace

from packhorse_weights.architectures import decoder
from packhorse_weights.architectures.base import with_defaults
from packhorse_weights.architectures.heads import LmHead
from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.spec import Spec


def _layers(config: Config, count: int) -> list[Spec]:
    """`layers`: `no_rope_layers` has a 1 for each that rotates."""
    every = config.integer("no_rope_layer_interval", default=4)
    flags = config.fields.get("no_rope_layers")
    if flags is None:
        flags = [int((i + 1) % every != 0) for i in range(count)]
    if (
        not isinstance(flags, list)
        or len(flags) != count
        or not all(one in (0, 1) for one in flags)
    ):
        raise CheckpointError(
            f"{config.where}: no_rope_layers {flags!r:.80}: expected 0 or 1 for each of the "
            f"{count} layers"
        )
    return [{} if flag else {"rope": None} for flag in flags]


def spec(model_type: str, config: Config) -> Spec:
    config.refuse("use_sliding_window")
    config = with_defaults(config, num_key_value_heads=4, rope_theta=2e6)
    result = decoder.spec("llama", config)
    return {**result, "family": model_type, "layers": _layers(config, result["num_layers"])}


ARCHITECTURE = replace(
    decoder.ARCHITECTURE,
    classes={"smollm3": "SmolLM3"},
    spec=spec,
    lm_head=LmHead(tied=True),
)
