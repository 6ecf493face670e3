"""The options with which a session is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from packhorse.load_arguments import parse_bytes
from packhorse.names import AskedDtype, AttentionAlgorithm, CacheDtype, Dtype

ModelPath = str | PathLike[str]
NGRAM = "ngram"  # drafts are looked up in the text itself
_DRAFT_TOKENS = 8
_MOST_DRAFT_TOKENS = 32


@dataclass(frozen=True)
class SessionOptions:
    """The options of the C++ library (packhorse/session.h) under the same names. `Session.load`
    explains them."""

    device: str = "cpu"
    dtype: Dtype = "float32"
    max_tokens: int = 8192
    max_sequences: int = 256
    threads: int | None = None
    pin_threads: bool = False
    memory_limit: int | str | None = None  # bytes, once it is made
    output_slots: int = 2
    max_predictions: int = 0
    attention_algorithm: AttentionAlgorithm = "auto"

    def __post_init__(self) -> None:
        limit = parse_bytes("memory_limit", self.memory_limit)
        object.__setattr__(self, "memory_limit", limit)


@dataclass(frozen=True)
class GenerationOptions:
    """The options of the C++ library (packhorse/generation.h) under the same names; `Session.load`
    says what they mean."""

    device: str = "cpu"
    dtype: Dtype = "float32"
    kv_tokens: int | None = None
    kv_cache_dtype: CacheDtype | None = None
    max_tokens: int = 2048
    max_sequences: int = 64
    max_queue: int = 4096
    prefix_cache: bool = True
    threads: int | None = None
    pin_threads: bool = False
    memory_limit: int | str | None = None  # bytes, once it is made
    eos_ids: tuple[int, ...] = ()
    max_adapters: int = 0
    max_adapter_rank: int = 16
    draft: ModelPath | None = None
    draft_dtype: AskedDtype | None = None
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        limit = parse_bytes("memory_limit", self.memory_limit)
        object.__setattr__(self, "memory_limit", limit)

    @classmethod
    def make(
        cls,
        device: str,
        dtype: Dtype,
        kv_tokens: int | None,
        max_tokens: int | None,
        max_sequences: int | None,
        threads: int | None,
        pin_threads: bool,
        memory_limit: int | str | None,
        max_queue: int = max_queue,
        prefix_cache: bool = prefix_cache,
        max_adapters: int = max_adapters,
        max_adapter_rank: int = max_adapter_rank,
        draft: ModelPath | None = None,
        draft_dtype: AskedDtype | None = None,
        draft_tokens: int | None = None,
        kv_cache_dtype: CacheDtype | None = None,
    ) -> GenerationOptions:
        """The options of a call of `Session.load`, where None stands for a default."""
        max_tokens = cls.max_tokens if max_tokens is None else max_tokens
        most = min(cls.max_sequences, max_tokens)
        return cls(
            device=device,
            dtype=dtype,
            kv_tokens=kv_tokens,
            kv_cache_dtype=kv_cache_dtype,
            max_tokens=max_tokens,
            max_sequences=most if max_sequences is None else max_sequences,
            max_queue=max_queue,
            prefix_cache=prefix_cache,
            threads=threads,
            pin_threads=pin_threads,
            memory_limit=memory_limit,
            max_adapters=max_adapters,
            max_adapter_rank=max_adapter_rank,
            draft=draft,
            draft_dtype=draft_dtype,
            draft_tokens=_draft_tokens(draft, draft_dtype, draft_tokens),
        )


def _draft_tokens(draft: ModelPath | None, dtype: AskedDtype | None, tokens: int | None) -> int:
    if draft is None:
        if tokens or dtype is not None:
            found = f"draft_tokens is {tokens}" if tokens else f"draft_dtype is {dtype!r}"
            raise ValueError(f"{found}, but nothing drafts: give draft='ngram' or a draft model")
        return 0
    if draft == NGRAM and dtype is not None:
        raise ValueError(f"draft_dtype is {dtype!r}, but draft='ngram' is no model")
    tokens = _DRAFT_TOKENS if tokens is None else tokens
    if not 1 <= tokens <= _MOST_DRAFT_TOKENS:
        raise ValueError(f"draft_tokens is {tokens}, expected 1 to {_MOST_DRAFT_TOKENS}")
    return tokens


def refuse_cache_dtype(dtype: CacheDtype | None) -> None:
    """Of a session that does not generate."""
    if dtype is not None:
        raise ValueError(
            f"kv_cache_dtype is {dtype!r}, but this session gives hidden states and embeddings: "
            "only models that generate have a cache"
        )


def refuse_drafts(draft: ModelPath | None) -> None:
    """Of a session that does not generate."""
    if draft is not None:
        raise ValueError(
            f"draft is {str(draft)!r}, but this session gives hidden states and embeddings: drafts "
            "are of models that generate"
        )


def refuse_adapters(max_adapters: int) -> None:
    """Of a session that does not generate."""
    if max_adapters:
        raise ValueError(
            f"max_adapters is {max_adapters}, but this session gives hidden states and embeddings: "
            "adapters are supported where a model generates; merge the adapter into the model"
        )
