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
