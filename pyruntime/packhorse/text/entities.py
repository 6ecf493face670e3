"""Entities of a text: what a classifier of tokens says, token by token, of words, or joined."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from packhorse.heads import require_head
from packhorse.result import FloatArray
from packhorse.text.checks import Text
from packhorse.text.labels import softmax
from packhorse.text.runner import Progress, TextRunner, as_texts
from packhorse.text.streaming import prepare_ahead
from packhorse.text.token_arrays import TokenArrays, arrays_of
from packhorse.text.tokenizer import TextTokenizer
from packhorse.text.windows import Window, Windows

Entity = dict[str, Any]
STRATEGIES = ("none", "simple", "first", "average", "max")


def continues_word(tokenizer: TextTokenizer, text: str, tokens: TokenArrays) -> list[bool]:
    """Of each token, whether it goes on with the word of the token before.

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


def join_entities(text: str, entities: Iterable[Entity]) -> Iterator[Entity]:
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


def _join(text: str, run: Sequence[Entity]) -> Entity:
    begin, end = run[0]["start"], run[-1]["end"]
    return {
        "entity_group": run[0]["entity"].partition("-")[2] or run[0]["entity"],
        "score": float(np.mean([entity["score"] for entity in run])),
        "word": text[begin:end],
        "start": begin,
        "end": end,
    }


def drop_overlaps(entities: Iterable[Entity]) -> list[Entity]:
    """Of entities of several windows that overlap, the longest one, or the likelier one."""
    kept: list[Entity] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        last = kept[-1] if kept else None
        if last is None or not last["start"] <= entity["start"] < last["end"]:
            kept.append(entity)
        elif _weight(entity) > _weight(last):
            kept[-1] = entity
    return kept


def _weight(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


class TokenClassifying(TextRunner):
    def classify_tokens(
        self,
        texts: str | Iterable[str],
        *,
        aggregation_strategy: str = "none",
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        max_length: int | None = None,
        truncation: bool = True,
        progress: Progress | None = None,
    ) -> Any:
        """What a classifier of tokens finds in each text, a list; of a single str, its own list.

        "none": for each token {"entity", "score", "index", "word", "start", "end"}; "simple": for
        each run of tokens of one kind {"entity_group", "score" (the mean), "word", "start", "end"}.
        "first", "average", "max": the same for runs of words, each of which has the label of its
        first token, of the mean of its tokens' scores, or of its surest token.
        `start` and `end` count characters, `word` is text[start:end], `index` counts tokens. Left
        out: special tokens, and what has one of `ignore_labels`.

        stride  None: what is longer than `max_length` is cut. Else it is read in windows that share
                so many tokens; of entities that overlap the longest is kept. Not with "none"

        Raises ValueError: a model that does not label tokens; a pair; a stride that leaves windows
        no room.
        """
        require_head(self.session.config, "classify_tokens")
        if aggregation_strategy not in STRATEGIES:
            raise ValueError(
                f"aggregation_strategy {aggregation_strategy!r:.80} is not one of "
                f"{', '.join(STRATEGIES)}"
            )
        chosen = as_texts(texts)
        if stride is None:
            read = self._cut(chosen, max_length, truncation, progress)
        elif aggregation_strategy == "none":
            raise ValueError(
                'stride joins entities of windows, not with aggregation_strategy="none"'
            )
        else:
            read = self._in_windows(chosen, stride, max_length, progress)
        found: list[list[Entity]] = []
        for text, windows in read:
            kept: list[Entity] = []
            for tokens, logits in windows:
                some = self._entities(text, tokens, logits, aggregation_strategy)
                kept += (
                    entity
                    for entity in some
                    if (entity.get("entity_group") or entity["entity"]) not in ignore_labels
                )
            found.append(drop_overlaps(kept) if len(windows) > 1 else kept)
        return found[0] if isinstance(texts, str) else found

    def _entities(
        self, text: str, tokens: TokenArrays, logits: FloatArray, strategy: str
    ) -> Iterator[Entity]:
        of_words = strategy not in ("none", "simple")
        continues = (
            continues_word(self.tokenizer, text, tokens) if of_words else [False] * len(logits)
        )
        found = find_entities(self.labels, text, tokens, logits, strategy, continues)
        return found if strategy == "none" else join_entities(text, found)

    def _cut(
        self,
        texts: Iterable[Text],
        max_length: int | None,
        truncation: bool,
        progress: Progress | None,
    ) -> Iterator[tuple[str, list[tuple[TokenArrays, FloatArray]]]]:
        """Yields (text, its tokens and their logits)."""
        for chunk, tokens, result in self._run(
            texts, ["logits"], max_length, truncation, progress, offsets=True, pairs=False
        ):
            rows = np.split(result.logits, result.cu_seqlens[1:-1])
            for text, encoding, logits in zip(chunk, tokens.encodings, rows, strict=True):
                yield str(text), [(arrays_of(encoding), logits)]

    def _in_windows(
        self,
        texts: Iterable[Text],
        stride: int,
        max_length: int | None,
        progress: Progress | None,
    ) -> Iterator[tuple[str, list[tuple[TokenArrays, FloatArray]]]]:
        """Yields (text, tokens and logits of each of its windows)."""
        total = len(texts) if isinstance(texts, Sized) else None
        done = 0
        longest = self.max_length if max_length is None else self._longest(max_length)
        if not 0 <= stride < longest:
            raise ValueError(f"stride {stride} is not between 0 and max_length, {longest}")
        windows = Windows(self.tokenizer, longest, stride)

        def prepare(chunk: Sequence[Text], first: int) -> list[list[Window]]:
            read = self.tokenizer.read(chunk, first=first, pairs=False, table=self._table)
            return [windows.split(tokens, 0, f"texts[{i}]") for i, tokens in enumerate(read, first)]

        for chunk, prepared in prepare_ahead(texts, self.session.max_sequences, prepare):
            logits = self._run_windows(prepared)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
            for text, own, rows in zip(chunk, prepared, logits, strict=True):
                yield (
                    str(text),
                    [(window.tokens, row) for window, row in zip(own, rows, strict=True)],
                )
