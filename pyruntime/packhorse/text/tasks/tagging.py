"""Entities from labels of tokens: of words, of runs of one kind, of windows that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypedDict

import numpy as np

from packhorse.result import FloatArray
from packhorse.text.tasks.labels import softmax
from packhorse.text.tokenization.token_arrays import TokenArrays
from packhorse.text.tokenization.tokenizer import TextTokenizer


class Entity(TypedDict):
    """A token, or a word, and its label. `word` is text[start:end], `index` the token's number."""

    entity: str
    score: float
    index: int
    word: str
    start: int
    end: int


class EntityGroup(TypedDict):
    """Tokens or words of one kind, joined. `word` is text[start:end]."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


STRATEGIES = ("none", "simple", "first", "average", "max")


def continues_word(tokenizer: TextTokenizer, text: str, tokens: TokenArrays) -> list[bool]:
    """Tells for each token whether it goes on with the word of the token before.

    As transformers tells: where the vocabulary marks such tokens ("##ing"), by that; else by the
    absence of a space, so that punctuation belongs to the word that it follows. What the vocabulary
    lacks is a word.
    """
    unknown = tokenizer.special_id("unk")
    marked = tokenizer.marks_continuation
    return [
        token != unknown
        and (
            len(tokenizer.token_of(token)) != end - begin
            if marked
            else begin > 0 and " " not in text[begin - 1 : begin + 1]
        )
        for token, begin, end in zip(
            tokens.ids.tolist(), tokens.begins.tolist(), tokens.ends.tolist(), strict=True
        )
    ]


def _of_word(scores: FloatArray, strategy: str) -> FloatArray:
    """The scores of a word of those of its tokens [tokens, labels]."""
    if strategy == "average":
        mean: FloatArray = scores.mean(axis=0)
        return mean
    best: FloatArray = scores[scores.max(axis=1).argmax() if strategy == "max" else 0]
    return best


def find_entities(
    labels: Sequence[str],
    text: str,
    tokens: TokenArrays,
    logits: FloatArray,
    strategy: str,
    continues: Sequence[bool],
) -> Iterator[Entity]:
    """The best label of each token or word of `text`, special tokens left out.

    continues  of each token, whether it is of the word of the token before
    """
    scores = softmax(logits)
    words: list[list[int]] = []
    for i in np.flatnonzero(tokens.parts == 0).tolist():
        if words and continues[i]:
            words[-1].append(i)
        else:
            words.append([i])
    for word in words:
        of_word = _of_word(scores[word], strategy)
        best = int(of_word.argmax())
        begin, end = int(tokens.begins[word[0]]), int(tokens.ends[word[-1]])
        yield {
            "entity": labels[best],
            "score": float(of_word[best]),
            "index": word[0],
            "word": text[begin:end],
            "start": begin,
            "end": end,
        }


def _split_label(label: str) -> tuple[str, str]:
    """(B or I, kind): a label without either continues what came before."""
    return (label[0], label[2:]) if label.startswith(("B-", "I-")) else ("I", label)


def join_entities(text: str, entities: Iterable[Entity]) -> Iterator[EntityGroup]:
    """Runs of tokens or words of one kind: a B- label begins another one, as does another kind."""
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


def _join(text: str, run: Sequence[Entity]) -> EntityGroup:
    begin, end = run[0]["start"], run[-1]["end"]
    return {
        "entity_group": run[0]["entity"].partition("-")[2] or run[0]["entity"],
        "score": float(np.mean([entity["score"] for entity in run])),
        "word": text[begin:end],
        "start": begin,
        "end": end,
    }


def drop_overlaps(entities: Iterable[EntityGroup]) -> list[EntityGroup]:
    """Keeps of entities of several windows that overlap the longest one, or the likelier one."""
    kept: list[EntityGroup] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        last = kept[-1] if kept else None
        if last is None or not last["start"] <= entity["start"] < last["end"]:
            kept.append(entity)
        elif _weight(entity) > _weight(last):
            kept[-1] = entity
    return kept


def _weight(entity: EntityGroup) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
