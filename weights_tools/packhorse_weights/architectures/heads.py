"""Classifiers on top of an encoder, as transformers' `...For...` classes have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packhorse_weights.config import Config

Options = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """What stands on the encoder in a checkpoint of one class.

    options: config -> `heads.classifier` of the spec, without `labels` and `score`.
    names: our name of a layer -> theirs, whole: heads stand beside the model's own prefix.
    labels: where the config's `id2label` does not say them.
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


POOLED = Head(lambda config: {"input": "pooler"}, {"classifier": "classifier"})
TOKENS = Head(lambda config: {"input": "tokens"}, {"classifier": "classifier"})
ANSWERS = Head(
    lambda config: {"input": "tokens"}, {"classifier": "qa_outputs"}, labels=("start", "end")
)
# By how the names of classes end.
OF_TOKENS = {"ForTokenClassification": TOKENS, "ForQuestionAnswering": ANSWERS}
OF_POOLER = {"ForSequenceClassification": POOLED, **OF_TOKENS}
ROBERTA = {
    "ForSequenceClassification": of_first_tokens("tanh", "classifier.dense", "classifier.out_proj"),
    **OF_TOKENS,
}
