"""M2M100 (Fan et al. 2020) and NLLB (Costa-jussà et al. 2022), the dense ones: norms before blocks
and after all layers, sines as positions from row 2 on."""

import math
from collections.abc import Mapping

import numpy as np

from packhorse_weights.architectures import fairseq
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_OFFSET = 2  # rows of the table before that of the first token


def spec(model_type: str, config: Config) -> Spec:
    # transformers counts positions from the padding token on.
    config.integer("pad_token_id", default=_OFFSET - 1, low=_OFFSET - 1, high=_OFFSET - 1)
    return fairseq.spec(
        model_type,
        config,
        fairseq.positions(config, _OFFSET),
        placement="pre",
        embedding_norm=False,
        activation="relu",
        scaled=True,
    )


def sines(count: int, width: int) -> Tensor:
    """Sines of all frequencies, then cosines, with frequencies as tensor2tensor spaces them."""
    half = width // 2
    steps = np.arange(half, dtype=np.float32) * np.float32(-math.log(10000.0) / (half - 1))
    angles = np.arange(count, dtype=np.float32)[:, None] * np.exp(steps)
    parts = [np.sin(angles), np.cos(angles), np.zeros((count, width % 2), np.float32)]
    return Tensor(np.concatenate(parts, axis=1).astype(np.float32), "float32")


def made(config: Config, prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tables of positions, which transformers computes whatever a file holds."""
    count = config.tokens("max_position_embeddings", default=1024, high=1 << 26)
    table = sines(count + _OFFSET, config.integer("d_model", low=4))
    names = (f"{prefix}{side}.embed_positions.weight" for side in fairseq.SIDES)
    return {**fairseq.flat_bias(tensors), **dict.fromkeys(names, table)}


ARCHITECTURE = Architecture(
    classes={"m2m_100": "M2M100"},
    spec=spec,
    names=fairseq.names(embedding_norm=False, final_norm=True),
    encoder=fairseq.ENCODER,
    unused=(*fairseq.UNUSED, *(f"{side}.embed_positions.weights" for side in fairseq.SIDES)),
    text_head=fairseq.HEAD,
    made=made,
)
