"""What every kind of result of a `TextModel` needs: tokenizing, running, in chunks and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from os import PathLike
from typing import Any, TypeVar

from packhorse.packing import Int32Array
from packhorse.result import RunResult
from packhorse.session import Session, plan_memory
from packhorse.text.settings import longest_sequence
from packhorse.text.streaming import prepare_ahead
from packhorse.text.tokenizer import NO_FRAME, Frame, Text, TextTokenizer, Tokens

Progress = Callable[[int, int | None], object]
Self = TypeVar("Self", bound="TextRunner")


def as_texts(texts: str | Iterable[Text]) -> Iterable[Text]:
    return [texts] if isinstance(texts, str) else texts


class TextRunner:
    """A session and the tokenizer of its model."""

    def __init__(
        self, session: Session, tokenizer: TextTokenizer, max_length: int | None = None
    ) -> None:
        self.session = session
        self.tokenizer = tokenizer
        self.max_length = self._longest(max_length)
        has_types = session.config.get("type_vocab_size", 0) > 1
        self._has_types = has_types and tokenizer.config.type_ids

    @classmethod
    def load(
        cls: type[Self],
        path: str | PathLike[str],
        device: str = "cpu",
        dtype: str | None = None,
        *,
        max_length: int | None = None,
        max_tokens: int | None = None,
        reranker: str | Mapping[str, Any] | None = None,
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Loads a model with its tokenizer; `path`, `device`, `dtype`: as in `Session.load`.

        max_length  where to cut texts; None: as the model's files say
        max_tokens  tokens of the largest batch; None: 8192, or `max_length` where that is more
        reranker, pooling, normalize, revision    as in `Session.load`
        options     others of it

        Raises as `Session.load`; ValueError also for a tokenizer that is missing or not usable,
        ModuleNotFoundError without the package tokenizers.
        """
        from packhorse_weights import find_model, inspect_checkpoint

        path = find_model(path, revision)
        checkpoint = inspect_checkpoint(path, reranker, pooling, normalize)
        spec = checkpoint.spec
        if dtype is None:
            dtype = checkpoint.default_dtype(device)
        plan_memory(spec, device, dtype, max_tokens=1, max_sequences=1)  # checks the spec
        tokenizer = TextTokenizer.load(path)
        if max_tokens is None:
            max_tokens = max(8192, longest_sequence(spec, max_length))
        session = Session.load(
            path,
            device,
            dtype,
            max_tokens=max_tokens,
            reranker=reranker,
            pooling=pooling,
            normalize=normalize,
            **options,
        )
        return cls(session, tokenizer, max_length)

    @property
    def labels(self) -> list[str]:
        """Of the model's classifier; empty where it has none."""
        return self.session.labels

    @property
    def prompts(self) -> dict[str, str]:
        """By name, as sentence-transformers keeps them with a model."""
        return dict(self.tokenizer.config.prompts)

    @property
    def num_truncated(self) -> int:
        """How many texts and pairs have been cut short so far."""
        return self.tokenizer.num_truncated

    def _longest(self, max_length: int | None) -> int:
        longest = longest_sequence(self.session.config, max_length)
        if longest > self.session.max_tokens:
            raise ValueError(
                f"max_length {longest} exceeds max_tokens {self.session.max_tokens} of the session"
            )
        return longest

    def _run(
        self,
        texts: Iterable[Text],
        outputs: Sequence[str],
        max_length: int | None,
        truncation: bool | str,
        progress: Progress | None,
        *,
        prompt: str = "",
        offsets: bool = False,
        frame: Frame = NO_FRAME,
        total: int | None = None,
    ) -> Iterator[tuple[list[Text], Tokens, RunResult]]:
        """Yields (texts, their tokens, outputs of the session) of each chunk of `texts`, in order.

        frame  what stands around the tokens of each text
        total  number of texts, where `texts` does not know it
        """
        longest = self.max_length if max_length is None else self._longest(max_length)
        if isinstance(texts, Sized):
            total = len(texts)

        def tokenize(chunk: Sequence[Text], first: int) -> Tokens:
            return self.tokenizer.encode(
                chunk,
                longest,
                truncation=truncation,
                offsets=offsets,
                prompt=prompt,
                frame=frame,
                first=first,
            )

        done = 0
        for chunk, tokens in prepare_ahead(texts, self.session.max_sequences, tokenize):
            result = self._run_tokens(tokens.ids, tokens.type_ids, outputs)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
            yield chunk, tokens, result

    def _run_tokens(
        self, ids: Sequence[Int32Array], type_ids: Sequence[Int32Array], outputs: Sequence[str]
    ) -> RunResult:
        return self.session.run_many(ids, outputs, type_ids=type_ids if self._has_types else None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r}, max_length={self.max_length})"
