"""Labels and their probabilities of a classifier's logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np

from packhorse.heads import classifier_of, require_head
from packhorse.names import Truncation
from packhorse.pairs import sigmoid
from packhorse.result import FloatArray
from packhorse.text.checks import Text
from packhorse.text.runner import Progress, TextRunner, as_texts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.text.call_types import PairCall


class Label(TypedDict):
    """A label of a text or pair, and its probability (the logit itself of a regression)."""

    label: str
    score: float


def softmax(x: FloatArray) -> FloatArray:
    """The softmax over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    result: FloatArray = powers / powers.sum(axis=-1, keepdims=True)
    return result


def check_classifier(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The classifier of texts. Raises ValueError where there is none."""
    require_head(config, "classify")
    classifier = classifier_of(config)
    problem = classifier.get("problem", "single_label")
    if problem not in ("single_label", "multi_label", "regression"):
        raise ValueError(
            f"classify: spec: 'heads.classifier.problem' is {problem!r:.80}, expected "
            '"single_label", "multi_label" or "regression"'
        )
    return classifier


def probabilities(classifier: Mapping[str, Any], logits: FloatArray) -> FloatArray:
    """[B, labels], as transformers' text classification computes them."""
    problem = classifier.get("problem", "single_label")
    if problem == "regression":
        return logits
    if problem == "multi_label" or logits.shape[1] == 1:
        return sigmoid(logits)
    return softmax(logits)


def best_labels(labels: Sequence[str], scores: FloatArray, top_k: int | None) -> list[list[Label]]:
    """The `top_k` best labels of each row of scores [B, labels], best first; None: all of them."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return [
        [{"label": labels[i], "score": float(row[i])} for i in best]
        for row, best in zip(scores, order.tolist(), strict=True)
    ]


class Classifying(TextRunner):
    @overload
    def classify(
        self,
        texts: str,
        *,
        top_k: Literal[1] = ...,
        **options: Unpack[PairCall],
    ) -> Label: ...
    @overload
    def classify(
        self,
        texts: str,
        *,
        top_k: int | None,
        **options: Unpack[PairCall],
    ) -> list[Label]: ...
    @overload
    def classify(
        self,
        texts: Iterable[Text],
        *,
        top_k: Literal[1] = ...,
        **options: Unpack[PairCall],
    ) -> list[Label]: ...
    @overload
    def classify(
        self,
        texts: Iterable[Text],
        *,
        top_k: int | None,
        **options: Unpack[PairCall],
    ) -> list[list[Label]]: ...
    def classify(
        self,
        texts: str | Iterable[Text],
        *,
        top_k: int | None = 1,
        max_length: int | None = None,
        truncation: bool | Truncation = True,
        progress: Progress | None = None,
    ) -> Any:
        """The best label of each text or pair, {"label": ..., "score": its probability}, in a list.

        With another `top_k` each result is a list of so many labels, best first; with None, of all
        labels. A single str gives its own result. Probabilities are a softmax over the labels, or a
        sigmoid of each one where the model was trained for several at once or has but one; a
        regression gives its logit.
        """
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k is {top_k}, expected a positive number or None")
        classifier = check_classifier(self.session.config)
        found: list[Any] = []
        for _, _, result in self._run(
            as_texts(texts), ["logits"], max_length, truncation, progress
        ):
            scores = probabilities(classifier, result.logits)
            best = best_labels(self.labels, scores, top_k)
            found += [row[0] for row in best] if top_k == 1 else best
        return found[0] if isinstance(texts, str) else found
