"""The memory plan of a session that need not be loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from packhorse import _session
from packhorse.dtypes import choose_dtype
from packhorse.memory import MemoryPlan
from packhorse.names import AttentionAlgorithm, Dtype, Pooling
from packhorse.options import ModelPath, SessionOptions


def plan_memory(
    model: ModelPath | Mapping[str, Any],
    device: str = "cpu",
    dtype: Dtype | None = None,
    max_tokens: int = 8192,
    max_sequences: int = 256,
    threads: int | None = None,
    pin_threads: bool = False,
    memory_limit: int | None = None,
    output_slots: int = 2,
    max_predictions: int = 0,
    reranker: str | Mapping[str, Any] | None = None,
    attention_algorithm: AttentionAlgorithm = "auto",
    pooling: Pooling | Sequence[Pooling] | None = None,
    normalize: bool | None = None,
    *,
    revision: str | None = None,
) -> MemoryPlan:
    """The plan that `Session.load` would have, without reading any weights.

    `model` is a folder as for `Session.load`, or a spec (docs/spec.md). A spec is complete, so
    `reranker`, `pooling`, `normalize` and `revision` are not accepted with it; if no dtype is
    given, its weights count as float32. Raises as `load` does.
    """
    stored = "float32"
    if not isinstance(model, Mapping):
        from packhorse_weights import resolve_model

        files = resolve_model(model, reranker, pooling, normalize, revision=revision)
        model, stored = files.spec, files.stored_dtype
    elif any(asked is not None for asked in (reranker, pooling, normalize, revision)):
        raise ValueError(
            "reranker, pooling, normalize and revision go with a folder or a name: a spec says all "
            "of this itself"
        )
    options = SessionOptions(
        device=device,
        dtype=choose_dtype(dtype, device, stored),
        max_tokens=max_tokens,
        max_sequences=max_sequences,
        threads=threads,
        pin_threads=pin_threads,
        memory_limit=memory_limit,
        output_slots=output_slots,
        max_predictions=max_predictions,
        attention_algorithm=attention_algorithm,
    )
    return MemoryPlan.from_native(_session.plan_memory(json.dumps(model), options))
