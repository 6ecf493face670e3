"""Commands that print a line of JSON for each line of text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from packhorse import TextModel
from packhorse.cli.lines import open_lines
from packhorse.cli.writers import note_truncated

Fields = Mapping[str, Any]
Find = Callable[[list[str]], Iterable[Fields]]


def print_results(
    model: str,
    file: Path,
    errors: str,
    load: dict[str, Any],
    doing: str,
    prepare: Callable[[TextModel], Find],
) -> None:
    """Prints {"index": number, ...} for each line of `file` ("-": stdin), in order.

    load     of `TextModel.load`
    doing    what the progress bar says
    prepare  gives, of the loaded model, the function that finds the fields of some texts. It is
             called once before any text is read, with none: for what is wrong with the model
    """
    with open_lines(file, doing, errors) as reader:
        loaded = TextModel.load(model, **load)
        find = prepare(loaded)
        list(find([]))
        for lines in reader:
            with lines.named():
                found = list(find(lines.texts))
            for number, fields in zip(lines.numbers, found, strict=True):
                print(json.dumps({"index": number, **fields}, ensure_ascii=False))
            sys.stdout.flush()
        reader.note()
        note_truncated(loaded)


def scores(query: str, instruction: str | None) -> Callable[[TextModel], Find]:
    def prepare(model: TextModel) -> Find:
        def find(texts: list[str]) -> Iterable[Fields]:
            found = model.score(query, texts, instruction=instruction)
            return ({"score": score} for score in found.tolist())

        return find

    return prepare


def labels(top_k: int | None, strategy: str | None) -> Callable[[TextModel], Find]:
    """Labels of texts, or where the model labels tokens, the entities in them."""

    def prepare(model: TextModel) -> Find:
        classifier = model.session.config.get("heads", {}).get("classifier", {})
        if classifier.get("input") == "tokens":
            if top_k is not None:
                raise ValueError("--top-k: of labels of texts, and this model labels tokens")
            chosen = strategy or "simple"
            return lambda texts: (
                {"entities": entities}
                for entities in model.classify_tokens(texts, aggregation_strategy=chosen)
            )
        if strategy is not None:
            raise ValueError("--strategy: of entities, and this model labels texts, not tokens")
        if top_k is None or top_k == 1:
            return model.classify
        return lambda texts: ({"labels": each} for each in model.classify(texts, top_k=top_k))

    return prepare


def answers(question: str, options: dict[str, Any]) -> Callable[[TextModel], Find]:
    def prepare(model: TextModel) -> Find:
        def find(texts: list[str]) -> Iterable[Fields]:
            found = model.answer([question] * len(texts), texts, **options)
            return found if options["top_k"] == 1 else ({"answers": each} for each in found)

        return find

    return prepare


def masks(top_k: int) -> Callable[[TextModel], Find]:
    def prepare(model: TextModel) -> Find:
        return lambda texts: ({"masks": each} for each in model.fill_mask(texts, top_k=top_k))

    return prepare


def sparse_vectors(prompts: dict[str, Any]) -> Callable[[TextModel], Find]:
    def prepare(model: TextModel) -> Find:
        return lambda texts: (
            {"ids": ids.tolist(), "weights": weights.tolist()}
            for ids, weights in model.embed_sparse(texts, **prompts)
        )

    return prepare


def token_vectors(prompts: dict[str, Any]) -> Callable[[TextModel], Find]:
    def prepare(model: TextModel) -> Find:
        return lambda texts: (
            {"vectors": rows.tolist()} for rows in model.embed_tokens(texts, **prompts)
        )

    return prepare
