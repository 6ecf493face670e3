"""The memory plan of a session that need not be loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from packhorse._native import session as _session
from packhorse.device import check_device
from packhorse.dtypes import choose_dtype
from packhorse.generation.plan import GenerationMemoryPlan
from packhorse.load_arguments import check_load
from packhorse.memory import MemoryPlan
from packhorse.names import AskedDtype, AttentionAlgorithm, CacheDtype, Pooling
from packhorse.options import (
    GenerationOptions,
    ModelPath,
    SessionOptions,
    refuse_adapters,
    refuse_cache_dtype,
    refuse_drafts,
)


def plan_memory(
    model: ModelPath | Mapping[str, Any],
    device: str = "cpu",
    dtype: AskedDtype | None = None,
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
    *,
    revision: str | None = None,
    kv_tokens: int | None = None,
    max_adapters: int = 0,
    max_adapter_rank: int = 16,
    draft: ModelPath | None = None,
    draft_dtype: AskedDtype | None = None,
    draft_tokens: int | None = None,
    kv_cache_dtype: CacheDtype | None = None,
) -> MemoryPlan:
    """The plan that `Session.load` would have, without reading any weights.

    `model` is a folder as for `Session.load`, or a spec (docs/spec.md). A spec is complete, so
    `reranker`, `pooling`, `normalize` and `revision` are not accepted with it; if no dtype is
    given, its weights count as float32, and if no `kv_tokens` are, it does not generate. The plan
    of a model that generates is a `GenerationMemoryPlan`. Raises as `load` does.
    """
    check_device(device)
    check_load(locals())
    stored = "float32"
    generation = bool(kv_tokens)
    if not isinstance(model, Mapping):
        from packhorse_weights import resolve_model
        from packhorse_weights.generation_files import generates

        files = resolve_model(model, reranker, pooling, normalize, revision=revision)
        asked = (reranker, pooling, normalize, max_predictions)
        generation = generates(model, files.spec, kv_tokens, *asked, revision=revision)
        stored = files.stored_dtype
        model = files.in_dtype(choose_dtype(dtype, device, stored)).spec
    elif any(asked is not None for asked in (reranker, pooling, normalize, revision)):
        raise ValueError(
            "reranker, pooling, normalize and revision go with a folder or a name: a spec says all "
            "of this itself"
        )
    elif "quantized" in model:
        stored = "stored"
    dtype = choose_dtype(dtype, device, stored)
    if dtype != "stored":
        model = {name: value for name, value in model.items() if name != "quantized"}
    if generation:
        sizes = (kv_tokens, max_tokens, max_sequences)
        return plan_generation(
            model,
            GenerationOptions.make(
                device,
                dtype,
                *sizes,
                threads,
                pin_threads,
                memory_limit,
                max_adapters=max_adapters,
                max_adapter_rank=max_adapter_rank,
                draft=draft,
                draft_dtype=draft_dtype,
                draft_tokens=draft_tokens,
                kv_cache_dtype=kv_cache_dtype,
            ),
        )
    refuse_adapters(max_adapters)
    refuse_drafts(draft)
    refuse_cache_dtype(kv_cache_dtype)
    options = SessionOptions(
        device=device,
        dtype=dtype,
        max_tokens=8192 if max_tokens is None else max_tokens,
        max_sequences=256 if max_sequences is None else max_sequences,
        threads=threads,
        pin_threads=pin_threads,
        memory_limit=memory_limit,
        output_slots=output_slots,
        max_predictions=max_predictions,
        attention_algorithm=attention_algorithm,
    )
    return MemoryPlan.from_native(_session.plan_memory(json.dumps(model), options))


def plan_generation(spec: Mapping[str, Any], options: GenerationOptions) -> GenerationMemoryPlan:
    """The plan of a model that generates."""
    from packhorse._native import generation as _generation
    from packhorse.generation.drafts import open_draft

    draft = open_draft(options)
    return GenerationMemoryPlan.of_generation(
        _generation.plan_generation(json.dumps(spec), options, None if draft is None else draft[:2])
    )
