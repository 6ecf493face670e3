"""Labels and their probabilities of a classifier's logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from packhorse.heads import classifier_of, require_head
from packhorse.names import ScoreActivation, Truncation
from packhorse.number_checks import is_int
from packhorse.pairs import check_activation, sigmoid
from packhorse.progress_bar import Progress
from packhorse.result import FloatArray, RunResult
from packhorse.text.checks import Text
from packhorse.text.parts import Request
from packhorse.text.runner import TextRunner

LabelledText = Text | Mapping[str, str | None]


class Label(TypedDict):
    """A label of a text or pair, and its probability; of a regression, or where that is asked for,
    its logit."""

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


_ACTIVATIONS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}


def default_activation(classifier: Mapping[str, Any]) -> ScoreActivation:
    """The function that makes scores of a classifier's logits in transformers' classification."""
    problem = classifier.get("problem", "single_label")
    if problem == "regression":
        return "none"
    single = len(classifier.get("labels", ())) == 1
    return "sigmoid" if problem == "multi_label" or single else "softmax"


def _pair_activation(classifier: Mapping[str, Any]) -> str:
    """The activation of pairs: the one of sentence-transformers' CrossEncoder where there are
    several labels, the pipeline's where there is one."""
    if len(classifier.get("labels", ())) == 1:
        return default_activation(classifier)
    named = str(classifier.get("score", "identity"))
    return "none" if named == "identity" else named


def _plain(text: Any, i: int) -> Text:
    """A text or pair of the pipeline's form, {"text": ..., "text_pair": ...}, as the tokenizer
    takes it; others as they are."""
    if not isinstance(text, Mapping):
        checked: Text = text  # by the tokenizer
        return checked
    if "text" not in text or not text.keys() <= {"text", "text_pair"}:
        raise ValueError(f'texts[{i}] is {text!r:.80}, expected {{"text": ..., "text_pair": ...}}')
    pair = text.get("text_pair")
    return text["text"] if pair is None else (text["text"], pair)


def _is_pair(text: object) -> bool:
    """Tells a pair in the form that CrossEncoder takes."""
    return isinstance(text, tuple | list)


def check_top_k(top_k: Any) -> None:
    """Raises ValueError for what is no number of results."""
    if top_k is not None and not (is_int(top_k) and top_k >= 1):
        raise ValueError(f"top_k is {top_k!r:.80}, expected a whole number over 0, or None")


def best_labels(labels: Sequence[str], scores: FloatArray, top_k: int | None) -> list[list[Label]]:
    """The `top_k` best labels of each row of scores [B, labels], best first; None: all of them."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    return [
        [{"label": labels[i], "score": float(row[i])} for i in best]
        for row, best in zip(scores, order.tolist(), strict=True)
    ]


class Classification:
    """Texts and pairs to labels; the arguments are those of `TextModel.classify`."""

    def __init__(
        self,
        runner: TextRunner,
        *,
        top_k: int | None,
        max_length: int | None,
        truncation: bool | Truncation,
        activation: ScoreActivation | None = None,
    ) -> None:
        check_top_k(top_k)
        self._runner = runner
        classifier = check_classifier(runner.session.config)
        check_activation(activation, *_ACTIVATIONS)
        self._of_texts = _ACTIVATIONS[activation or default_activation(classifier)]
        self._named = activation or _pair_activation(classifier)
        self._of_pairs = _ACTIVATIONS.get(self._named)
        self._top_k = top_k
        self._max_length = runner.longest(max_length)
        self._truncation = truncation

    def prepare(self, texts: list[LabelledText], first: int) -> tuple[Request, None]:
        if self._of_pairs is None and any(map(_is_pair, texts)):
            raise ValueError(
                f"this model's files name the activation {self._named!r:.80} for scores of pairs, "
                f"which is not supported: give activation=, one of {', '.join(_ACTIVATIONS)}"
            )
        plain = [_plain(text, i) for i, text in enumerate(texts, first)]
        tokens = self._runner.encode(plain, first, self._max_length, truncation=self._truncation)
        return self._runner.request(tokens.ids, tokens.type_ids, "logits"), None

    def finish(self, texts: list[Any], _kept: None, result: RunResult) -> list[Any]:
        scores = self._of_texts(result.logits)
        if self._of_pairs is not None and self._of_pairs is not self._of_texts:
            pairs = np.array([_is_pair(text) for text in texts])
            scores = np.where(pairs[:, None], self._of_pairs(result.logits), scores)
        best = best_labels(self._runner.session.labels, scores, self._top_k)
        return [row[0] for row in best] if self._top_k == 1 else best

    def run(
        self,
        texts: str | Mapping[str, str | None] | Iterable[LabelledText],
        progress: Progress | None,
    ) -> Any:
        if isinstance(texts, Mapping):
            return self._runner.results_of_texts(self, [texts], progress)[0]
        return self._runner.results_of_texts(self, texts, progress)
