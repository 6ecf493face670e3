"""Running of the tasks of a `TextModel`: texts to tokens, tokens to rows, any number of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np
from packhorse_weights.spec import stem_of

from packhorse.encoder_session import EncoderSession
from packhorse.names import OutputName
from packhorse.packing import Int32Array
from packhorse.progress_bar import Progress, reporting
from packhorse.result import RunResult
from packhorse.session import Session
from packhorse.text.batching import Batcher
from packhorse.text.checks import Text, as_texts, check_types
from packhorse.text.parts import Request
from packhorse.text.settings import longest_sequence
from packhorse.text.streaming import prepare_ahead
from packhorse.text.tokenization.token_arrays import TokenArrays
from packhorse.text.tokenization.tokenizer import TextTokenizer, Tokens

Item = TypeVar("Item")
Kept = TypeVar("Kept")
Found = TypeVar("Found", covariant=True)


class Task(Protocol[Item, Kept, Found]):
    """One call of a method of `TextModel`, with its arguments: texts to tokens, rows to results."""

    def prepare(self, items: list[Item], first: int) -> tuple[Request, Kept]:
        """Items, of which the first has this number, to tokens, and what `finish` needs besides.

        Everything that may be wrong with an item is found here: what is in a request may share a
        batch with the requests of other callers. Called by another thread than the caller's while
        the items before are run.
        """
        ...

    def finish(self, items: list[Item], kept: Kept, result: RunResult) -> Found:
        """The rows of the request to results."""
        ...


class TextRunner:
    """A session, the tokenizer of its model, and how long a text may be, for any number of tasks
    and threads. Nothing is locked while texts are made tokens; requests of several threads share
    batches."""

    def __init__(
        self, session: Session, tokenizer: TextTokenizer, max_length: int | None = None
    ) -> None:
        self.session = session
        self.tokenizer = tokenizer
        self.max_length = self._check_length(max_length)
        types = stem_of(session.config).get("type_vocab_size", 0)
        self._num_types = types if types > 1 and tokenizer.config.type_ids else 0
        self._placeholder = stem_of(session.config).get("rows", {}).get("id")
        self._batcher = Batcher(session) if isinstance(session, EncoderSession) else None
        self._padding = self._read_padding()
        self.most_windows: int | None = None  # in all texts that are prepared together

    @property
    def encoder(self) -> EncoderSession:
        """The session of a model that gives rows. Raises ValueError for one that generates."""
        if not isinstance(self.session, EncoderSession):
            raise ValueError(self.session._purpose)
        return self.session

    def _check_length(self, max_length: int | None) -> int:
        longest = longest_sequence(self.session.config, max_length)
        if longest > self.session.max_tokens and not self.session.generates:
            raise ValueError(
                f"max_length {longest} exceeds max_tokens {self.session.max_tokens} of the session"
            )
        return longest

    def _read_padding(self) -> tuple[int, int] | None:
        """(tokens, id) for a model whose texts are filled up to a length with a token that the
        others see; None for all others. Raises ValueError where the tokenizer has no such token."""
        length = self.session.config.get("text", {}).get("pad_to")
        if length is None:
            return None
        token = self.tokenizer.special_id("pad")
        if token is None:
            raise ValueError(
                f"this model fills texts up to {length} tokens, but its tokenizer names no token "
                "for that: expected a pad_token in tokenizer_config.json"
            )
        return min(int(length), self.session.max_seqlen), token

    def filled(self, ids: Sequence[Int32Array]) -> Sequence[Int32Array]:
        """The tokens as the model was trained to read them: filled up to a length where that is
        so."""
        if self._padding is None:
            return ids
        length, token = self._padding
        return [np.pad(row, (0, max(0, length - row.size)), constant_values=token) for row in ids]

    def longest(self, max_length: int | None) -> int:
        """Limit of tokens of a call with this `max_length`. Raises ValueError for too much."""
        return self.max_length if max_length is None else self._check_length(max_length)

    @property
    def _table(self) -> int:
        """Number of entries of the model's embedding table."""
        return int(stem_of(self.session.config)["vocab_size"])

    def encode(self, texts: Sequence[Text], first: int, max_length: int, **options: Any) -> Tokens:
        """`TextTokenizer.encode`, with ids and type ids that the model takes."""
        tokens = self.tokenizer.encode(texts, max_length, first=first, table=self._table, **options)
        check_types(tokens.type_ids, self._num_types, first)
        if self._placeholder is not None:
            for number, ids in enumerate(tokens.ids, first):
                if (ids == self._placeholder).any():
                    raise ValueError(
                        f"texts[{number}] has the token {self._placeholder}, which stands for a "
                        "part of an image in this model"
                    )
        return tokens

    def read(self, texts: Sequence[Text], first: int, *, pairs: bool) -> list[TokenArrays]:
        """`TextTokenizer.read`, with ids and type ids that the model takes."""
        found = self.tokenizer.read(texts, first=first, pairs=pairs, table=self._table)
        check_types([tokens.type_ids for tokens in found], self._num_types, first)
        return found

    def request(
        self,
        ids: Sequence[Int32Array],
        type_ids: Sequence[Int32Array],
        *outputs: OutputName,
        places: Sequence[Int32Array] | None = None,
    ) -> Request:
        """Outputs of the session for these tokens, with their types where the model takes any."""
        return Request(ids, type_ids if self._num_types else None, outputs, places)

    def results(
        self,
        task: Task[Item, Kept, Found],
        items: Iterable[Item],
        progress: Progress | None = False,
        *,
        total: int | None = None,
        chunk: int | None = None,
    ) -> Iterator[Found]:
        """Yields what the task makes of chunks of `items`, in order.

        total  number of items, where `items` does not know it
        chunk  items that are prepared together; None: as many as a batch may hold
        """
        session = self.encoder
        session.check_open()
        assert self._batcher is not None
        if isinstance(items, Sized):
            total = len(items)
        done = 0
        size = session.max_sequences if chunk is None else chunk
        with reporting(progress) as report:
            for some, (request, kept) in prepare_ahead(items, size, task.prepare):
                result = self._batcher.run(request)
                done += len(some)
                if report is not None:
                    report(done, total)
                yield task.finish(some, kept, result)

    def results_of_texts(
        self,
        task: Task[Item, Kept, list[Any]],
        texts: str | Iterable[Item],
        progress: Progress | None,
        *,
        chunk: int | None = None,
    ) -> Any:
        """All results of a task that gives one for each text; of a single str, its own."""
        runs = self.results(task, as_texts(texts), progress, chunk=chunk)
        found = list(chain.from_iterable(runs))
        return found[0] if isinstance(texts, str) else found
