"""Marian (Junczys-Dowmunt et al. 2018), which OPUS-MT trains: the first transformer, with norms
after blocks, sines as positions, and a bias of logits. Source and target may have tables of their
own."""

from collections.abc import Mapping

from packhorse_weights.architectures import fairseq
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor


def is_shared(config: Config) -> bool:
    return config.boolean("share_encoder_decoder_embeddings", True)


def spec(model_type: str, config: Config) -> Spec:
    return fairseq.spec(
        model_type,
        config,
        fairseq.positions(config, 0),
        placement="post",
        embedding_norm=False,
        activation="gelu",
        shared=is_shared(config),
    )


def made(config: Config, prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**fairseq.flat_bias(tensors), **fairseq.add_sines(config, prefix, tensors)}


def architecture(shared: bool) -> Architecture:
    return Architecture(
        classes={"marian": "Marian"},
        spec=spec,
        names=fairseq.names(embedding_norm=False, final_norm=False, shared=shared),
        encoder=fairseq.ENCODER,
        unused=fairseq.UNUSED,
        text_head=fairseq.HEAD,
        made=made,
        accepts=lambda config: is_shared(config) == shared,
    )


ARCHITECTURE = architecture(shared=True)
OF_TWO_TABLES = architecture(shared=False)
