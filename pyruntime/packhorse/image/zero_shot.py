"""Labels that a model was never trained on, by the similarity of their texts to images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.pairs import sigmoid
from packhorse.result import FloatArray
from packhorse.text.tasks.labels import softmax

DEFAULT_TEMPLATE = "a photo of a {}"
ACTIVATIONS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}


def label_texts(labels: Sequence[str], template: str = DEFAULT_TEMPLATE) -> list[str]:
    """The texts of labels, by a template in which {} stands for the label. Raises ValueError."""
    if isinstance(labels, str) or not labels or not all(isinstance(one, str) for one in labels):
        raise ValueError(f"labels is {labels!r:.80}, expected a list of one text or more")
    if not isinstance(template, str) or "{}" not in template:
        raise ValueError(f"template is {template!r:.80}, expected {{}} where the label goes")
    return [template.replace("{}", one) for one in labels]


def similarities(config: Mapping[str, Any], images: FloatArray, texts: FloatArray) -> FloatArray:
    """Scores of embeddings [images, dims] and [texts, dims]: float32 [images, texts], the cosines
    times the model's scale, plus its bias. `config`: the spec of a model with both towers."""
    fields = config["similarity"]
    cosines: FloatArray = images @ texts.T
    found: FloatArray = cosines * np.float32(fields["scale"]) + np.float32(fields["bias"])
    return found


def label_scores(config: Mapping[str, Any], images: FloatArray, texts: FloatArray) -> FloatArray:
    """Probabilities of labels by the embeddings of their texts, float32 [images, labels]: of models
    trained with a softmax they sum up to 1, of others each label has one of its own."""
    return ACTIVATIONS[config["similarity"]["score"]](similarities(config, images, texts))
