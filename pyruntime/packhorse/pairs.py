"""Joins pairs of texts to one sequence, as cross-encoders read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.heads import classifier_of, require_head
from packhorse.names import ScoreActivation
from packhorse.packing import Int32Array, TokenSequence, as_int32
from packhorse.result import FloatArray


def check_scores(config: Mapping[str, Any]) -> None:
    """Raises ValueError naming what the model of this spec lacks for scoring pairs."""
    require_head(config, "score")
    score = classifier_of(config).get("score", "identity")
    if score not in ("identity", "sigmoid"):
        raise ValueError(
            f"score: spec: 'heads.classifier.score' is {score!r:.80}, expected \"identity\" or "
            '"sigmoid"'
        )


def check_pair(config: Mapping[str, Any]) -> None:
    """Raises ValueError if this spec does not say how pairs are joined."""
    if "template" in config:
        raise ValueError("score: this model reads pairs in a template of text: TextModel.score")
    if "pair" not in config:
        raise ValueError(
            "score: the folder has no tokenizer.json that says how pairs are joined; run joined "
            'pairs with outputs=["logits"]'
        )
    if not _joins_pairs(config["pair"]):
        raise ValueError(
            f"score: spec: 'pair' is {config['pair']!r:.120}, expected 'tokens', ids with "
            '"query" and "document" among them, and as many numbers in \'types\''
        )


def _joins_pairs(pair: Any) -> bool:
    if not isinstance(pair, dict) or pair.keys() != {"tokens", "types"}:
        return False
    tokens, types = pair["tokens"], pair["types"]
    if not isinstance(tokens, list) or not isinstance(types, list) or len(tokens) != len(types):
        return False
    texts = [token for token in tokens if type(token) is not int]
    return texts == ["query", "document"] and all(type(kind) is int for kind in types)


def _kept(query: int, document: int, room: int, truncation: str) -> tuple[int, int]:
    """Numbers of tokens kept of each text if there is room for `room` tokens in all."""
    if query + document <= room:
        return query, document
    if truncation == "only_second":
        return query, room - query
    # Cutting tokens one by one off the longer text leaves both halves, unless one text is shorter
    # than its half.
    half = room // 2
    if query <= document:
        kept = min(query, half)
        return kept, room - kept
    kept = min(document, half)
    return room - kept, kept


def join_pairs(
    config: Mapping[str, Any],
    max_length: int,
    query: TokenSequence,
    documents: Sequence[TokenSequence],
    truncation: str,
) -> tuple[list[Int32Array], list[Int32Array]]:
    """Returns (ids, type ids) of each pair, truncated to `max_length` as
    `EncoderSession.score` says."""
    if truncation not in ("longest_first", "only_second"):
        raise ValueError(f"truncation {truncation!r:.80} is not longest_first or only_second")
    pair = config["pair"]
    whole = as_int32("query", query)
    special = len(pair["tokens"]) - 2
    room = max_length - special
    if room < (whole.size if truncation == "only_second" else 0):
        raise ValueError(
            f"query has {whole.size} tokens, a pair at most {max_length} with {special} special "
            "tokens"
        )
    ids, types = [], []
    for i, tokens in enumerate(documents):
        document = as_int32(f"documents[{i}]", tokens)
        query_size, document_size = _kept(whole.size, document.size, room, truncation)
        texts = {"query": whole[:query_size], "document": document[:document_size]}
        parts = [
            texts[token] if isinstance(token, str) else np.array([token], np.int32)
            for token in pair["tokens"]
        ]
        ids.append(np.concatenate(parts))
        types.append(np.repeat(np.array(pair["types"], np.int32), [part.size for part in parts]))
    return ids, types


def sigmoid(x: FloatArray) -> FloatArray:
    result: FloatArray = np.exp(-np.logaddexp(0, -x))
    return result


def check_activation(activation: object, *known: str) -> None:
    """Raises ValueError for what is neither None nor one of these names."""
    if activation is not None and activation not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(f"activation is {activation!r:.80}, expected None or one of {names}")


def as_scores(
    config: Mapping[str, Any], logits: FloatArray, activation: ScoreActivation | None = None
) -> FloatArray:
    """Computes float32[B] scores from logits [B, 1]. `activation`: "sigmoid", "none", or None: as
    the model says."""
    scores: FloatArray = logits[:, 0]
    if activation is None:
        activation = "sigmoid" if classifier_of(config).get("score") == "sigmoid" else "none"
    return sigmoid(scores) if activation == "sigmoid" else scores
