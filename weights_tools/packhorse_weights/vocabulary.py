"""The head of a masked language model."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.layout import Spec
from packhorse_weights.tensor import Tensor


def read_masked_lm(
    family: Architecture, prefix: str, config: Config, tensors: Mapping[str, Tensor]
) -> tuple[Spec, dict[str, str]] | None:
    """Returns (`heads.masked_lm` of the spec, our name of a layer or tensor -> theirs, complete).

    Returns None if the class that the config names has no such head, or if the checkpoint does not
    have its weights.

    As in transformers, the decoder is the word table unless the config says that it is not, or the
    checkpoint has another one.
    """
    head = family.masked_lm
    if head is None or not config.class_name.endswith(("ForMaskedLM", "ForPreTraining")):
        return None
    names = dict(head.names)
    if f"{names['masked_lm.dense']}.weight" not in tensors:
        return None
    decoder = names.pop("masked_lm.decoder")
    tied = config.boolean("tie_word_embeddings", True) and f"{decoder}.weight" not in tensors
    names["masked_lm.decoder.weight"] = (
        f"{prefix}{family.names['embeddings.word']}" if tied else f"{decoder}.weight"
    )
    stored = f"{decoder}.bias" in tensors or head.bias is None
    names["masked_lm.decoder.bias"] = f"{decoder}.bias" if stored else str(head.bias)
    return head.options(config), names
