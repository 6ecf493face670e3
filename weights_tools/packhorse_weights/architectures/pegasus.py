"""Pegasus (Zhang et al. 2020): norms before blocks and after all layers, sines as positions."""

from packhorse_weights.architectures import fairseq
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    where = fairseq.positions(config, 0)
    return fairseq.spec(
        model_type, config, where, placement="pre", embedding_norm=False, activation="gelu"
    )


ARCHITECTURE = Architecture(
    classes={"pegasus": "Pegasus"},
    spec=spec,
    names=fairseq.names(embedding_norm=False, final_norm=True),
    encoder=fairseq.ENCODER,
    unused=fairseq.UNUSED,
    text_head=fairseq.HEAD,
    made=lambda config, prefix, tensors: {
        **fairseq.flat_bias(tensors),
        **fairseq.add_sines(config, prefix, tensors),
    },
)
