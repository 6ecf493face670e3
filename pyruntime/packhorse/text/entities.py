"""Entities of a text: what a classifier of tokens says, token by token or joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.pairs import classifier_of
from packhorse.result import FloatArray
from packhorse.text.labels import softmax
from packhorse.text.runner import Progress, TextRunner, as_texts

if TYPE_CHECKING:
    from tokenizers import Encoding

Entity = dict[str, Any]


def check_token_classifier(config: Mapping[str, Any]) -> None:
    """Raises ValueError for a model without a classifier of tokens."""
    if classifier_of(config, "classify_tokens")["input"] != "tokens":
        raise ValueError("classify_tokens: this model labels texts, not tokens: classify")


def find_entities(
    labels: Sequence[str], text: str, encoding: Encoding, logits: FloatArray
) -> list[Entity]:
    """The best label of each token of `text` but special ones; logits [tokens, labels]."""
    scores = softmax(logits)
    best = scores.argmax(axis=1).tolist()
    return [
        {
            "entity": labels[best[i]],
            "score": float(scores[i, best[i]]),
            "index": i,
            "word": text[begin:end],
            "start": begin,
            "end": end,
        }
        for i, (begin, end) in enumerate(encoding.offsets)
        if not encoding.special_tokens_mask[i]
    ]


def _split_label(label: str) -> tuple[str, str]:
    """(B or I, kind): a label without either continues what came before."""
    return (label[0], label[2:]) if label.startswith(("B-", "I-")) else ("I", label)


def join_entities(text: str, entities: Iterable[Entity]) -> Iterator[Entity]:
    """Runs of tokens of one kind: a B- label begins another one, as does another kind."""
    run: list[Entity] = []
    kind = ""
    for entity in entities:
        begins, next_kind = _split_label(entity["entity"])
        if run and (begins == "B" or next_kind != kind):
            yield _join(text, run)
            run = []
        run.append(entity)
        kind = next_kind
    if run:
        yield _join(text, run)


def _join(text: str, run: Sequence[Entity]) -> Entity:
    begin, end = run[0]["start"], run[-1]["end"]
    return {
        "entity_group": run[0]["entity"].partition("-")[2] or run[0]["entity"],
        "score": float(np.mean([entity["score"] for entity in run])),
        "word": text[begin:end],
        "start": begin,
        "end": end,
    }


class TokenClassifying(TextRunner):
    def classify_tokens(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: str = "none",
        ignore_labels: Sequence[str] = ("O",),
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """What a classifier of tokens finds in each text, a list; of a single str, its own list.

        "none": for each token {"entity", "score", "index", "word", "start", "end"}; "simple": for
        each run of tokens of one kind {"entity_group", "score" (the mean), "word", "start", "end"}.
        `start` and `end` count characters, `word` is text[start:end], `index` counts tokens. Left
        out: special tokens, and what has one of `ignore_labels`.
        """
        check_token_classifier(self.session.config)
        if aggregation_strategy not in ("none", "simple"):
            raise ValueError(
                f"aggregation_strategy {aggregation_strategy!r:.80} is not one of none, simple"
            )
        found: list[list[Entity]] = []
        for chunk, tokens, result in self._run(
            as_texts(texts), ["logits"], max_length, truncation, progress, offsets=True
        ):
            rows = np.split(result.logits, result.cu_seqlens[1:-1])
            for text, encoding, logits in zip(chunk, tokens.encodings, rows, strict=True):
                if not isinstance(text, str):
                    raise ValueError(f"{text!r:.80} is a pair, expected a text")
                some = find_entities(self.labels, text, encoding, logits)
                if aggregation_strategy == "simple":
                    some = list(join_entities(text, some))
                names = [entity.get("entity_group") or entity["entity"] for entity in some]
                found.append(
                    [e for e, name in zip(some, names, strict=True) if name not in ignore_labels]
                )
        return found[0] if isinstance(texts, str) else found
