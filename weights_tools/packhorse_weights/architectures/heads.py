"""Classifiers on top of an encoder, as transformers' `...For...` classes have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packhorse_weights.activations import ACTIVATIONS
from packhorse_weights.config import Config
from packhorse_weights.tensor import Tensor

Options = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """A classifier on top of the encoder, in checkpoints of one class.

    options: config -> `heads.classifier` of the spec, without `labels` and `score`.
    names: our name of a layer -> theirs, complete, as heads lie outside the model's own prefix.
    labels: the labels if the config's `id2label` does not name them.
    """

    options: Callable[[Config], Options]
    names: Mapping[str, str]
    labels: tuple[str, ...] = ()


def of_first_tokens(activation: str, dense: str, classifier: str) -> Head:
    """classifier(activation(dense(the first token)))"""
    return Head(
        lambda config: {"input": "cls", "dense": {"activation": activation}},
        {"classifier.dense": dense, "classifier": classifier},
    )


@dataclass(frozen=True)
class MaskedLm:
    """decoder(norm(activation(dense(x)))), over the vocabulary.

    options: config -> `heads.masked_lm` of the spec.
    names: our name of a layer -> theirs, complete.
    bias: another name under which the decoder's bias may be stored.
    """

    options: Callable[[Config], Options]
    names: Mapping[str, str]
    bias: str | None = None


def masked_lm(
    dense: str,
    norm: str,
    decoder: str,
    bias: str | None = None,
    field: str | None = "hidden_act",
    default: str = "gelu",
) -> MaskedLm:
    """`field` names the config's field for the activation, which is `default` if it is absent. None
    means that the activation is always GELU."""
    names = {"masked_lm.dense": dense, "masked_lm.norm": norm, "masked_lm.decoder": decoder}

    def options(config: Config) -> Options:
        return {"activation": config.choice(field, ACTIVATIONS, default) if field else "gelu"}

    return MaskedLm(options, names, bias)


def no_options(config: Config) -> Options:
    return {}


@dataclass(frozen=True)
class LmHead:
    """The layer over the vocabulary of a causal language model.

    name: theirs, whole.
    tied: whether it is the word table where the config does not say.
    options: config -> what `heads.lm` of the spec says beside `tied`.
    """

    name: str = "lm_head"
    tied: bool = False
    options: Callable[[Config], Options] = no_options


@dataclass(frozen=True)
class TextHead:
    """The layer over the vocabulary of a model with an encoder and a decoder.

    options: (config, tensors) -> `heads.lm` of the spec.
    names: our name of a tensor -> theirs, whole.
    """

    options: Callable[[Config, Mapping[str, Tensor]], Options]
    names: Mapping[str, str]


_OF_BERT = "cls.predictions"
BERT_LM = masked_lm(
    f"{_OF_BERT}.transform.dense",
    f"{_OF_BERT}.transform.LayerNorm",
    f"{_OF_BERT}.decoder",
    f"{_OF_BERT}.bias",
)
ROBERTA_LM = masked_lm(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias", field=None
)
POOLED = Head(lambda config: {"input": "pooler"}, {"classifier": "classifier"})
TOKENS = Head(lambda config: {"input": "tokens"}, {"classifier": "classifier"})
ANSWERS = Head(
    lambda config: {"input": "tokens"}, {"classifier": "qa_outputs"}, labels=("start", "end")
)
# One number for each text, by which the choices of a question are compared.
CHOICES = Head(lambda config: {"input": "pooler"}, {"classifier": "classifier"}, labels=("choice",))
NEXT_SENTENCE = Head(
    lambda config: {"input": "pooler"},
    {"classifier": "cls.seq_relationship"},
    labels=("is next", "is not next"),
)
# Classifiers of tokens, by the end of the class's name.
OF_TOKENS = {"ForTokenClassification": TOKENS, "ForQuestionAnswering": ANSWERS}
OF_POOLER = {
    "ForSequenceClassification": POOLED,
    "ForMultipleChoice": CHOICES,
    "ForNextSentencePrediction": NEXT_SENTENCE,
    **OF_TOKENS,
}
ROBERTA = {
    "ForSequenceClassification": of_first_tokens("tanh", "classifier.dense", "classifier.out_proj"),
    "ForMultipleChoice": CHOICES,
    **OF_TOKENS,
}
