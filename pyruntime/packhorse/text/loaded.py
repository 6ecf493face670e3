"""A session and the tokenizer of its model, loaded together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from packhorse.device import check_device
from packhorse.dtypes import choose_dtype
from packhorse.load_arguments import check_load
from packhorse.names import AskedDtype, AttentionAlgorithm, CacheDtype, Pooling
from packhorse.options import ModelPath
from packhorse.planning import plan_memory
from packhorse.progress_bar import shows_loading
from packhorse.session import Session
from packhorse.text.generation.calls import TextGeneration
from packhorse.text.other_names import missing_attribute
from packhorse.text.runner import TextRunner
from packhorse.text.settings import longest_sequence
from packhorse.text.tokenization.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from packhorse_weights.generation_files import GenerationFiles

Self = TypeVar("Self", bound="LoadedText")


class LoadedText:
    """What is there of a `TextModel` before any method is called: loading, closing, settings."""

    def __init__(
        self,
        session: Session,
        tokenizer: TextTokenizer,
        max_length: int | None = None,
        files: GenerationFiles | None = None,
    ) -> None:
        """`files` is what the model's files say about generation; None: `session` does not
        generate."""
        self._runner = TextRunner(session, tokenizer, max_length)
        self._generation = None if files is None else TextGeneration(self._runner, files)

    @property
    def session(self) -> Session:
        """What runs the model."""
        return self._runner.session

    @property
    def tokenizer(self) -> TextTokenizer:
        """What makes tokens of texts."""
        return self._runner.tokenizer

    @property
    def max_length(self) -> int:
        """Most tokens of a text or pair, where a call says nothing else. May be set."""
        return self._runner.max_length

    @max_length.setter
    def max_length(self, tokens: int) -> None:
        runner = copy(self._runner)  # copies of the model keep theirs
        runner.max_length = runner.longest(tokens)
        self._runner = runner

    @classmethod
    @shows_loading
    def load(
        cls: type[Self],
        path: ModelPath,
        device: str = "cpu",
        dtype: AskedDtype | None = None,
        *,
        max_length: int | None = None,
        max_tokens: int | None = None,
        max_sequences: int | None = None,
        threads: int | None = None,
        pin_threads: bool = False,
        memory_limit: int | str | None = None,
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
        max_adapters: int = 0,
        max_adapter_rank: int = 16,
        draft: ModelPath | None = None,
        draft_dtype: AskedDtype | None = None,
        draft_tokens: int | None = None,
        kv_cache_dtype: CacheDtype | None = None,
        generation_config: bool = True,
        progress: bool | None = None,
    ) -> Self:
        """Loads a model with its tokenizer. `path`, `device` and `dtype` are as in `Session.load`.

        max_length  where to cut texts; None: as the model's files say
        max_tokens  tokens of the largest batch; None: 8192, or `max_length` where that is more; for
                    a model that generates, as in `Session.load`
        generation_config
                    whether a model that generates does so as its generation_config.json says where
                    a call says nothing else. False: by the defaults of `Sampling`; the tokens that
                    end a text still count

        The other arguments are those of `Session.load`.

        Raises as `Session.load`; ValueError also for a tokenizer that is missing or not usable,
        ModuleNotFoundError without the package tokenizers.
        """
        check_load(locals())
        from packhorse_weights import find_model, inspect_checkpoint
        from packhorse_weights.generation_files import generates, read_generation

        check_device(device)
        path = find_model(path, revision)
        checkpoint = inspect_checkpoint(path, reranker, pooling, normalize)
        spec = checkpoint.spec
        dtype = choose_dtype(dtype, device, checkpoint.stored_dtype)
        asked = (reranker, pooling, normalize, max_predictions)
        generation = generates(path, spec, kv_tokens, *asked)
        if not generation:
            of_dtype = checkpoint.spec_in(dtype)
            plan_memory(of_dtype, device, dtype, max_tokens=1, max_sequences=1)  # checks the spec
        # Before anything large is loaded.
        files = read_generation(path, settings=generation_config) if generation else None
        tokenizer = TextTokenizer.load(path)
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
            max_adapters=max_adapters,
            max_adapter_rank=max_adapter_rank,
            draft=draft,
            draft_dtype=draft_dtype,
            draft_tokens=draft_tokens,
            kv_cache_dtype=kv_cache_dtype,
            progress=False,
        )
        return cls(session, tokenizer, max_length, files)

    if not TYPE_CHECKING:  # type checkers would accept any name if they saw this

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(type(self).__name__, name)

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r}, max_length={self.max_length})"
