"""The heads of language models: the masked and the causal ones."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse_weights.architectures import find_architecture
from packhorse_weights.architectures.base import Architecture
from packhorse_weights.config import Config
from packhorse_weights.spec import Spec
from packhorse_weights.tensor import Tensor

_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # ends of names of classes


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


def why_no_lm_head(config: Config) -> str:
    """Says in a message why a model of this config has no head of a causal language model."""
    name = config.class_name
    if not name:
        return (
            f"{config.where} names no class in `architectures`, such as LlamaForCausalLM, which "
            "says that the model generates"
        )
    causal = name.endswith(_CAUSAL)
    # Models of images have no architecture among those of texts.
    head = find_architecture(config)[1].lm_head if causal else None
    if head is None:
        return f"{name}, which {config.where} names in `architectures`, is no such class here"
    return (
        f"there is no tensor {head.name}.weight, and tie_word_embeddings of {config.where} is not "
        "true"
    )


def read_lm_head(
    family: Architecture, prefix: str, config: Config, tensors: Mapping[str, Tensor]
) -> tuple[Spec, dict[str, str]] | None:
    """(`heads.lm` of the spec, ours of a layer or tensor -> theirs, whole); None where the class
    that the config names is no causal language model, or the checkpoint has none of its weights.

    As in transformers, the decoder is the word table where the config, or the default of its
    family, says so, whatever else the checkpoint holds.
    """
    head = family.lm_head
    if head is None or not config.class_name.endswith(_CAUSAL):
        return None
    tied = config.boolean("tie_word_embeddings", head.tied)
    if not tied and f"{head.name}.weight" not in tensors:
        return None
    options = {**({"tied": True} if tied else {}), **head.options(config)}
    return options, {"lm.decoder": head.name}
