"""What every kind of result of a `TextModel` needs: tokenizing, running, in chunks and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np

from packhorse.arguments import Outputs
from packhorse.dtypes import choose_dtype
from packhorse.names import AttentionAlgorithm, Dtype, Pooling
from packhorse.options import ModelPath
from packhorse.packing import Int32Array
from packhorse.planning import plan_memory
from packhorse.result import FloatArray, RunResult
from packhorse.session import Session
from packhorse.text.checks import Text
from packhorse.text.generation import TextGeneration
from packhorse.text.settings import longest_sequence
from packhorse.text.streaming import prepare_ahead
from packhorse.text.tokenizer import NO_FRAME, Frame, TextTokenizer, Tokens
from packhorse.text.windows import Window

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
        self._generation: TextGeneration | None = None

    @classmethod
    def load(
        cls: type[Self],
        path: ModelPath,
        device: str = "cpu",
        dtype: Dtype | None = None,
        *,
        max_length: int | None = None,
        max_tokens: int | None = None,
        max_sequences: int | None = None,
        threads: int | None = None,
        pin_threads: bool = False,
        memory_limit: int | None = None,
        output_slots: int = 2,
        max_predictions: int = 0,
        reranker: str | Mapping[str, Any] | None = None,
        attention_algorithm: AttentionAlgorithm = "auto",
        pooling: Pooling | Sequence[Pooling] | None = None,
        normalize: bool | None = None,
        revision: str | None = None,
        kv_tokens: int | None = None,
        max_queue: int = 4096,
        prefix_cache: bool = True,
    ) -> Self:
        """Loads a model with its tokenizer. `path`, `device` and `dtype` are as in `Session.load`.

        max_length  where to cut texts; None: as the model's files say
        max_tokens  tokens of the largest batch; None: 8192, or `max_length` where that is more; of
                    a model that generates, as in `Session.load`

        The other arguments are those of `Session.load`.

        Raises as `Session.load`; ValueError also for a tokenizer that is missing or not usable,
        ModuleNotFoundError without the package tokenizers.
        """
        from packhorse_weights import find_model, inspect_checkpoint
        from packhorse_weights.generation_files import generates, read_generation

        path = find_model(path, revision)
        checkpoint = inspect_checkpoint(path, reranker, pooling, normalize)
        spec = checkpoint.spec
        dtype = choose_dtype(dtype, device, checkpoint.stored_dtype)
        plan_memory(spec, device, dtype, max_tokens=1, max_sequences=1)  # checks the spec
        tokenizer = TextTokenizer.load(path)
        embeds = reranker is not None or pooling is not None or normalize is not None
        generation = generates(path, spec, kv_tokens, embeds=embeds)
        if max_tokens is None and not generation:
            max_tokens = max(8192, longest_sequence(spec, max_length))
        session = Session.load(
            path,
            device,
            dtype,
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            threads=threads,
            pin_threads=pin_threads,
            memory_limit=memory_limit,
            output_slots=output_slots,
            max_predictions=max_predictions,
            reranker=reranker,
            attention_algorithm=attention_algorithm,
            pooling=pooling,
            normalize=normalize,
            kv_tokens=kv_tokens,
            max_queue=max_queue,
            prefix_cache=prefix_cache,
        )
        model = cls(session, tokenizer, max_length)
        if generation:
            model._generation = TextGeneration(session, tokenizer, read_generation(path))
        return model

    def close(self) -> None:
        """Closes the session (`Session.close`). Methods that need it raise RuntimeError then."""
        self.session.close()

    def __enter__(self: Self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def labels(self) -> list[str]:
        """The labels of the model's classifier; empty where it has none."""
        return self.session.labels

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by name, as sentence-transformers keeps them with a model."""
        return dict(self.tokenizer.config.prompts)

    @property
    def num_truncated(self) -> int:
        """How many texts and pairs have been cut short so far."""
        return self.tokenizer.num_truncated

    @property
    def _table(self) -> int:
        """How many entries the model's embedding table has."""
        return int(self.session.config["vocab_size"])

    def _longest(self, max_length: int | None) -> int:
        longest = longest_sequence(self.session.config, max_length)
        if longest > self.session.max_tokens and not self.session.generates:
            raise ValueError(
                f"max_length {longest} exceeds max_tokens {self.session.max_tokens} of the session"
            )
        return longest

    def _run(
        self,
        texts: Iterable[Text],
        outputs: Outputs,
        max_length: int | None,
        truncation: bool | str,
        progress: Progress | None,
        *,
        prompt: str = "",
        offsets: bool = False,
        frame: Frame = NO_FRAME,
        total: int | None = None,
        pairs: bool = True,
    ) -> Iterator[tuple[list[Text], Tokens, RunResult]]:
        """Yields (texts, their tokens, outputs of the session) of each chunk of `texts`, in order.

        frame  what stands around the tokens of each text
        total  number of texts, where `texts` does not know it
        pairs  whether a pair may be among them
        """
        self.session.check_open()
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
                pairs=pairs,
                table=self._table,
            )

        done = 0
        for chunk, tokens in prepare_ahead(texts, self.session.max_sequences, tokenize):
            result = self._run_tokens(tokens.ids, tokens.type_ids, outputs)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
            yield chunk, tokens, result

    def _run_tokens(
        self, ids: Sequence[Int32Array], type_ids: Sequence[Int32Array], outputs: Outputs
    ) -> RunResult:
        return self.session.run_many(ids, outputs, type_ids=type_ids if self._has_types else None)

    def _run_windows(self, windows: Sequence[Sequence[Window]]) -> list[list[FloatArray]]:
        """Logits [tokens, labels] of each window of each text."""
        flat = [window.tokens for own in windows for window in own]
        result = self._run_tokens([t.ids for t in flat], [t.type_ids for t in flat], ["logits"])
        rows = iter(np.split(result.logits, result.cu_seqlens[1:-1]))
        return [[next(rows) for _ in own] for own in windows]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r}, max_length={self.max_length})"
