"""BART (Lewis et al. 2020): norms after blocks and on embeddings, learned positions from row 2."""

from packhorse_weights.architectures import fairseq
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec


def spec(model_type: str, config: Config) -> Spec:
    where = fairseq.positions(config, 2)
    return fairseq.spec(
        model_type, config, where, placement="post", embedding_norm=True, activation="gelu"
    )


ARCHITECTURE = Architecture(
    classes={"bart": "Bart"},
    spec=spec,
    names=fairseq.names(embedding_norm=True, final_norm=False),
    encoder=fairseq.ENCODER,
    unused=fairseq.UNUSED,
    text_head=fairseq.HEAD,
    made=lambda config, prefix, tensors: fairseq.flat_bias(tensors),
)
