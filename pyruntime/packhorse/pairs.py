"""Pairs of texts in one sequence, as cross-encoders read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.packing import Int32Array, TokenSequence, as_int32
from packhorse.result import FloatArray


def check_scores(config: Mapping[str, Any]) -> None:
    """Raises ValueError naming what the model of this spec lacks for scoring pairs."""
    classifier = config.get("heads", {}).get("classifier")
    if classifier is None:
        raise ValueError("score: this model has no classifier")
    if classifier["input"] == "tokens" or len(classifier["labels"]) != 1:
        kind = "each token" if classifier["input"] == "tokens" else "a sequence"
        raise ValueError(
            f"score: this model gives {kind} {len(classifier['labels'])} labels, expected one "
            "label for a sequence"
        )
    if "pair" not in config:
        raise ValueError(
            "score: the folder has no tokenizer.json that says how pairs are joined; run joined "
            'pairs with outputs=["logits"]'
        )
    score = classifier.get("score", "identity")
    if score not in ("identity", "sigmoid"):
        raise ValueError(
            f"score: spec: 'heads.classifier.score' is {score!r:.80}, expected \"identity\" or "
            '"sigmoid"'
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


def join_pairs(
    config: Mapping[str, Any],
    max_length: int,
    query: TokenSequence,
    documents: Sequence[TokenSequence],
) -> tuple[list[Int32Array], list[Int32Array]]:
    """(ids, type ids) of each pair. What exceeds `max_length` is cut off the document's end."""
    pair = config["pair"]
    texts = {"query": as_int32("query", query)}
    room = max_length - (len(pair["tokens"]) - 2) - texts["query"].size
    if room < 0:
        raise ValueError(
            f"query has {texts['query'].size} tokens, a pair at most {max_length} with "
            f"{len(pair['tokens']) - 2} special tokens"
        )
    ids, types = [], []
    for i, document in enumerate(documents):
        texts["document"] = as_int32(f"documents[{i}]", document)[:room]
        parts = [
            texts[token] if isinstance(token, str) else np.array([token], np.int32)
            for token in pair["tokens"]
        ]
        ids.append(np.concatenate(parts))
        types.append(np.repeat(np.array(pair["types"], np.int32), [part.size for part in parts]))
    return ids, types


def as_scores(config: Mapping[str, Any], logits: FloatArray) -> FloatArray:
    """float32[B] of logits [B, 1]."""
    scores: FloatArray = logits[:, 0]
    if config["heads"]["classifier"].get("score") == "sigmoid":
        scores = np.exp(-np.logaddexp(0, -scores))
    return scores
