"""Methods of `TextModel`, by the heads of a model that they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packhorse_weights.spec import has_encoder_decoder, hears, is_causal, sees

Config = Mapping[str, Any]
_ANSWER_LABELS = ["start", "end"]


def _heads(config: Config) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.get("heads", {})
    return found


def classifier_of(config: Config) -> Mapping[str, Any]:
    """The classifier section of a spec; empty if it has none."""
    found: Mapping[str, Any] = _heads(config).get("classifier") or {}
    return found


def _labels(config: Config) -> list[str]:
    return list(classifier_of(config).get("labels", ()))


def _labels_texts(config: Config) -> bool:
    return bool(classifier_of(config).get("input", "tokens") != "tokens")


def _labels_tokens(config: Config) -> bool:
    return classifier_of(config).get("input") == "tokens" and _labels(config) != _ANSWER_LABELS


def _answers(config: Config) -> bool:
    return classifier_of(config).get("input") == "tokens" and _labels(config) == _ANSWER_LABELS


# Method -> (what it needs, a function that says whether a spec has that). A model may suit several
# methods.
_NEEDS: Mapping[str, tuple[str, Callable[[Config], bool]]] = {
    "score": (
        "a classifier of texts with one label",
        lambda config: _labels_texts(config) and len(_labels(config)) == 1,
    ),
    "classify": ("a classifier of texts", _labels_texts),
    "classify_tokens": ("a classifier of tokens", _labels_tokens),
    "answer": ("logits of the start and the end of an answer", _answers),
    "fill_mask": (
        "the head of a masked language model",
        lambda config: "masked_lm" in _heads(config),
    ),
    "embed_sparse": (
        "a head of sparse vectors",
        lambda config: (
            bool(_heads(config).get("token_weights"))
            or bool(_heads(config).get("masked_lm", {}).get("sparse"))
        ),
    ),
    "embed_tokens": (
        "a head of vectors for late interaction",
        lambda config: "vectors" in _heads(config),
    ),
}


def methods_for(config: Config) -> list[str]:
    """The methods of `TextModel` that use the heads of this spec, or "embed" if there are none. A
    causal language model generates or, if it is loaded so, embeds. Models of images and of speech
    have the methods of their own classes: `ImageModel`, `PageModel`, `AudioModel`."""
    if hears(config):
        return ["transcribe"]
    if sees(config):
        return _methods_of_images(config)
    found = [name for name, (_, fits) in _NEEDS.items() if fits(config)]
    if has_encoder_decoder(config):
        return ["generate", "translate", "summarize"]
    return found or (["generate", "embed"] if "lm" in _heads(config) else ["embed"])


def _methods_of_images(config: Config) -> list[str]:
    if "pages" in config:
        return ["embed_images", "embed_queries", "score"]
    classifies = ["classify"] if classifier_of(config) else []
    return [*classifies, "embed", *(["similarity", "zero_shot"] if "similarity" in config else [])]


def _describe(config: Config) -> str:
    labels = _labels(config)
    if _answers(config):
        return "this model marks the start and the end of answers"
    if labels:
        kind = "texts" if _labels_texts(config) else "tokens"
        count = f"{len(labels)} label{'s' if len(labels) > 1 else ''}"
        return f"this model gives {kind} {count} ({', '.join(labels):.120})"
    found = [needed for needed, fits in _NEEDS.values() if fits(config)]
    if has_encoder_decoder(config):
        return "this model makes texts of texts"
    if not found and "lm" in _heads(config):
        return "this model is a causal language model"
    return f"this model has {' and '.join(found)}" if found else "this model gives embeddings"


def require_head(config: Config, method: str) -> None:
    """Raises ValueError if `method` cannot use this model, naming the methods that can."""
    needed, fits = _NEEDS[method]
    if fits(config):
        return
    hint = f"use {' or '.join(methods_for(config))}"
    if method == "score" and is_causal(config):
        hint += "; a generative reranker is loaded with reranker="
    raise ValueError(f"{method}: {_describe(config)}, expected {needed}: {hint}")
