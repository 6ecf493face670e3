"""Comparison of models that give scores, labels or answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse.evaluation import statistics
from packhorse.evaluation.items import Entry, plain_texts, queries, questions, texts_and_pairs
from packhorse.evaluation.measures import Measure, Spread
from packhorse.evaluation.task import Report, Task
from packhorse.heads import classifier_of
from packhorse.text import TextModel
from packhorse.text.tasks.labels import default_activation, softmax


class Score(Task):
    """Scores of documents for queries: whether their order stays the same."""

    name = "score"

    def items(self, entries: Sequence[Entry]) -> Sequence[Any]:
        return queries(entries)

    def run(self, model: TextModel, items: Sequence[Any], report: Report) -> Any:
        pairs = [(query, document) for query, documents in items for document in documents]
        scores = model.score_pairs(pairs, progress=report)
        ends = np.cumsum([len(documents) for _, documents in items])
        return np.split(scores, ends[:-1])

    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        ranks = [
            statistics.rank_correlation(ours, theirs)
            for ours, theirs in zip(found, expected, strict=True)
        ]
        best = np.mean([a.argmax() == b.argmax() for a, b in zip(found, expected, strict=True)])
        ours, theirs = np.concatenate(found), np.concatenate(expected)
        differences = np.abs(ours.astype(np.float64) - theirs)
        return [
            Measure(
                "rank_correlation",
                "rank correlation of documents, mean",
                float(np.mean(ranks)),
                "higher",
                0.98,
                0.94,
            ),
            Measure("rank_correlation_min", "rank correlation, smallest", float(np.min(ranks))),
            Measure("top_1_same", "best document the same", float(best), "higher", 0.97, 0.9),
            Measure(
                "score_difference_max",
                "largest difference of scores",
                float(differences.max()),
                "lower",
            ),
            Measure(
                "score_difference_mean",
                "mean difference of scores",
                float(differences.mean()),
                "lower",
            ),
        ], Spread("difference of scores to float32", differences)


class Classify(Task):
    """Labels of texts and pairs, and their probabilities."""

    name = "classify"

    def items(self, entries: Sequence[Entry]) -> Sequence[Any]:
        return texts_and_pairs(entries)

    def run(self, model: TextModel, items: Sequence[Any], report: Report) -> Any:
        classifier = classifier_of(model.session.config)
        activation = default_activation(classifier)  # that of texts, for pairs as well
        found = model.classify(items, top_k=None, activation=activation, progress=report)
        columns = {label: i for i, label in enumerate(model.labels)}
        scores = np.empty((len(found), len(columns)), np.float32)
        for row, labels in zip(scores, found, strict=True):
            for one in labels:
                row[columns[one["label"]]] = one["score"]
        if classifier.get("problem") == "regression":
            return scores, scores > np.inf  # there is nothing to choose
        several = classifier.get("problem") == "multi_label" or len(columns) == 1
        chosen = scores > 0.5 if several else scores.argmax(axis=1)[:, None]
        return scores, chosen

    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        same = (found[1] == expected[1]).all(axis=1)
        differences = np.abs(found[0].astype(np.float64) - expected[0]).max(axis=1)
        return label_measures(same, differences), Spread(
            "largest difference of a text's probabilities to float32", differences
        )


def label_measures(same: Any, differences: statistics.Float64s) -> list[Measure]:
    flips = float(1 - same.mean()) if same.size else 0.0
    largest, mean = (float(part(differences)) for part in (np.max, np.mean))
    return [
        Measure("label_flips", "other labels", flips, "lower", 0.01, 0.03),
        Measure(
            "probability_difference_max",
            "largest difference of probabilities",
            largest,
            "lower",
        ),
        Measure(
            "probability_difference_mean",
            "mean difference of probabilities",
            mean,
            "lower",
            0.01,
            0.05,
        ),
    ]


class ClassifyTokens(Task):
    """Labels of tokens, and their probabilities."""

    name = "classify_tokens"

    def items(self, entries: Sequence[Entry]) -> Sequence[str]:
        return plain_texts(entries)

    def run(self, model: TextModel, items: Sequence[str], report: Report) -> Any:
        stem = stem_of(model.session.config)
        tokens = model.tokenizer.encode(
            items, model.max_length, pairs=False, table=stem["vocab_size"]
        )
        with_types = stem.get("type_vocab_size", 0) > 1
        types = tokens.type_ids if with_types and model.tokenizer.config.type_ids else None
        logits = model.encoder_session.run_many(
            tokens.ids, outputs=["logits"], type_ids=types
        ).logits
        report(len(items), len(items))
        return softmax(logits)

    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        same = found.argmax(axis=1) == expected.argmax(axis=1)
        differences = np.abs(found.astype(np.float64) - expected).max(axis=1)
        return label_measures(same, differences), Spread(
            "largest difference of a token's probabilities to float32", differences
        )


class Answer(Task):
    """Answers to questions."""

    name = "answer"

    def items(self, entries: Sequence[Entry]) -> Sequence[Any]:
        return questions(entries)

    def run(self, model: TextModel, items: Sequence[Any], report: Report) -> Any:
        found = model.answer([one for one, _ in items], [one for _, one in items])
        report(len(items), len(items))
        return found

    def compare(self, found: Any, expected: Any) -> tuple[list[Measure], Spread]:
        pairs = list(zip(found, expected, strict=True))
        same = np.mean([all(a[end] == b[end] for end in ("start", "end")) for a, b in pairs])
        differences = np.array([abs(a["score"] - b["score"]) for a, b in pairs])
        return [
            Measure("answers_same", "answers the same", float(same), "higher", 0.97, 0.9),
            Measure(
                "score_difference_max",
                "largest difference of scores",
                float(differences.max()),
                "lower",
            ),
        ], Spread("difference of scores to float32", differences)
