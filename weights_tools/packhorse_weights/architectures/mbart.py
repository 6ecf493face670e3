"""mBART (Liu et al. 2020) and mBART-50 (Tang et al. 2020): BART with norms before blocks and after
all layers."""

from packhorse_weights.architectures import fairseq
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    where = fairseq.positions(config, 2)
    return fairseq.spec(
        model_type, config, where, placement="pre", embedding_norm=True, activation="gelu"
    )


ARCHITECTURE = Architecture(
    classes={"mbart": "MBart"},
    spec=spec,
    names=fairseq.names(embedding_norm=True, final_norm=True),
    encoder=fairseq.ENCODER,
    unused=fairseq.UNUSED,
    text_head=fairseq.HEAD,
    made=lambda config, prefix, tensors: fairseq.flat_bias(tensors),
)
