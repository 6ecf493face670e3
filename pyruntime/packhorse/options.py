"""The options with which a session is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from packhorse.names import AttentionAlgorithm, Dtype

ModelPath = str | PathLike[str]


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
    memory_limit: int | None = None
    output_slots: int = 2
    max_predictions: int = 0
    attention_algorithm: AttentionAlgorithm = "auto"


@dataclass(frozen=True)
class GenerationOptions:
    """The options of the C++ library (packhorse/generation.h) under the same names; `Session.load`
    says what they mean."""

    device: str = "cpu"
    dtype: Dtype = "float32"
    kv_tokens: int | None = None
    max_tokens: int = 2048
    max_sequences: int = 64
    max_queue: int = 4096
    prefix_cache: bool = True
    threads: int | None = None
    pin_threads: bool = False
    memory_limit: int | None = None
    eos_ids: tuple[int, ...] = ()
