"""Commands that print a line of JSON for each line of text."""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse_weights import inspect_checkpoint

from packhorse import TextModel
from packhorse.cli.lines import open_lines
from packhorse.cli.options import Reading
from packhorse.cli.writers import note_truncated
from packhorse.heads import methods_for, require_head
from packhorse.load_options import TextLoadOptions
from packhorse.result import FloatArray

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class FileRun:
    """A file of texts and the model that reads it. file: "-" is stdin. load: arguments of
    `TextModel.load`."""

    model: str
    file: Path
    reading: Reading
    load: dict[str, Any]

    def require(self, method: str) -> None:
        """Raises ValueError, before anything is loaded, if the model has no head for a method."""
        read = TextLoadOptions(**self.load).reading()
        require_head(inspect_checkpoint(self.model, **read).spec, method)

    def print_results(
        self,
        doing: str,
        find: Callable[[TextModel, list[str]], Iterable[Fields]],
        best: int | None = None,
    ) -> None:
        """Prints {"index": number of the line, ...} for each line, in order.

        doing  the text of the progress bar
        find   returns the fields for each of some texts. It is called once without texts, before
               any is read, to find errors of the model
        best   if given, print only this many lines, those with the highest "score", best first
        """
        with open_lines(self.file, doing, self.reading.errors) as reader:
            model = TextModel.load(self.model, kv_tokens=0, **self.load, progress=False)
            list(find(model, []))

            def results() -> Iterator[Fields]:
                for lines in reader:
                    with lines.named():
                        found = list(find(model, lines.texts))
                    for number, text, fields in zip(lines.numbers, lines.texts, found, strict=True):
                        shown = {"text": text} if self.reading.text else {}
                        yield {"index": number, **shown, **fields}
                    sys.stdout.flush()

            if best is None:
                _print_lines(results())
            else:
                _print_lines(heapq.nlargest(best, results(), key=lambda fields: fields["score"]))
            reader.note()
            note_truncated(model)


def _print_lines(lines: Iterable[Fields]) -> None:
    for fields in lines:
        print(json.dumps(fields, ensure_ascii=False, allow_nan=False))


def scores(
    model: TextModel, texts: list[str], query: str, options: dict[str, Any]
) -> Iterator[Fields]:
    found = model.score(query, texts, **options, progress=False)
    return ({"score": score} for score in found.tolist())


def labels(
    model: TextModel,
    texts: list[str],
    pairs: bool,
    of_texts: Mapping[str, Any],
    of_tokens: Mapping[str, Any],
) -> Iterable[Fields]:
    """Finds labels of texts or pairs or, if the model labels tokens, the entities of texts.

    of_texts   options for a model that labels texts: "top_k", "activation"
    of_tokens  options for a model that labels tokens: "strategy", "stride"
    """
    if "classify_tokens" in methods_for(model.session.config):
        _refuse({"pairs": pairs or None, **of_texts}, "this model labels tokens, not texts")
        entities = model.classify_tokens(
            texts,
            aggregation_strategy=of_tokens["strategy"] or "simple",  # the method checks the name
            stride=of_tokens["stride"],
            progress=False,
        )
        return ({"entities": some} for some in entities)
    _refuse(of_tokens, "this model labels texts, not tokens")
    given: list[Any] = _pairs(texts) if pairs else texts
    top_k = 1 if of_texts["top_k"] is None else of_texts["top_k"]
    found: Any = model.classify(
        given, top_k=top_k, activation=of_texts["activation"], progress=False
    )
    return found if top_k == 1 else ({"labels": some} for some in found)


def _refuse(options: Mapping[str, Any], reason: str) -> None:
    """Raises ValueError for an option that was given."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name.replace('_', '-')}: {reason}")


def _pairs(texts: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for i, text in enumerate(texts):
        parts = text.split("\t")
        if len(parts) != 2:
            raise ValueError(
                f"texts[{i}] has {len(parts) - 1} tabs, expected one, between two texts"
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def answers(
    model: TextModel, texts: list[str], question: str, options: dict[str, Any]
) -> Iterable[Fields]:
    found = model.answer([question] * len(texts), texts, **options)
    return found if options["top_k"] == 1 else ({"answers": some} for some in found)


def masks(model: TextModel, texts: list[str], top_k: int) -> Iterator[Fields]:
    """Finds words for masks. The result has a list for each mask, even if there is only one."""
    for found in model.fill_mask(texts, top_k=top_k):
        yield {"masks": found if isinstance(found[0], list) else [found]}


def sparse_vectors(model: TextModel, texts: list[str], prompts: dict[str, Any]) -> Iterator[Fields]:
    found = model.embed_sparse(texts, **prompts, progress=False)
    return ({"ids": ids.tolist(), "weights": _short(weights)} for ids, weights in found)


def token_vectors(model: TextModel, texts: list[str], prompts: dict[str, Any]) -> Iterator[Fields]:
    found = model.embed_tokens(texts, **prompts, progress=False)
    return ({"vectors": [_short(row) for row in rows]} for rows in found)


def _short(values: FloatArray) -> list[float]:
    """Formats numbers with nine digits, which are enough to restore a float32."""
    return [float(f"{value:.9g}") for value in values.tolist()]
