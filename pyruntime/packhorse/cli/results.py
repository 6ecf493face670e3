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
    """Which text is read, and by which model. file: "-" is stdin. load: arguments of
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
    model: TextModel, texts: list[str], query: str, instruction: str | None
) -> Iterator[Fields]:
    found = model.score(query, texts, instruction=instruction, progress=False)
    return ({"score": score} for score in found.tolist())


def labels(
    model: TextModel,
    texts: list[str],
    top_k: int | None,
    pairs: bool,
    strategy: str | None,
    stride: int | None,
) -> Iterable[Fields]:
    """Finds labels of texts or pairs or, if the model labels tokens, the entities of texts."""
    if "classify_tokens" in methods_for(model.session.config):
        if top_k is not None or pairs:
            name = "--pairs" if pairs else "--top-k"
            raise ValueError(f"{name}: this model labels tokens, not texts")
        joined: Any = strategy or "simple"  # the method checks the name
        entities = model.classify_tokens(
            texts, aggregation_strategy=joined, stride=stride, progress=False
        )
        return ({"entities": some} for some in entities)
    if strategy is not None or stride is not None:
        name = "--stride" if strategy is None else "--strategy"
        raise ValueError(f"{name}: this model labels texts, not tokens")
    given: list[Any] = _pairs(texts) if pairs else texts
    if top_k is None or top_k == 1:
        return model.classify(given, progress=False)
    return ({"labels": some} for some in model.classify(given, top_k=top_k, progress=False))


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
