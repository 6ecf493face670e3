"""The memory plan of a session that need not be loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packhorse._native import session as _session
from packhorse.device import check_device
from packhorse.dtypes import choose_dtype
from packhorse.generation.drafts import open_draft
from packhorse.generation.plan import GenerationMemoryPlan
from packhorse.load_options import READING, LoadOptions, ModelPath
from packhorse.memory import MemoryPlan
from packhorse.names import AskedDtype
from packhorse.option_fields import takes_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from packhorse.load_options import LoadCall


@takes_options(LoadOptions)
def plan_memory(
    model: ModelPath | Mapping[str, Any],
    device: str = "cpu",
    dtype: AskedDtype | None = None,
    **options: Unpack[LoadCall],
) -> MemoryPlan:
    """The plan that `Session.load` would have, without reading any weights.

    `model` is a folder as for `Session.load`, or a spec (docs/developer/spec.md). A spec is
    complete, so `reranker`, `pooling`, `normalize` and `revision` are not accepted with it; if no
    dtype is given, its weights count as float32, and if no `kv_tokens` are, it does not generate.
    The plan of a model that generates is a `GenerationMemoryPlan`. Raises as `load` does.
    """
    asked = LoadOptions(device=device, dtype=dtype, **options)
    check_device(device)
    stored = "float32"
    generates = bool(asked.kv_tokens)
    if not isinstance(model, Mapping):
        from packhorse_weights import resolve_model

        files = resolve_model(model, **asked.reading())
        generates = asked.generates(model, files.spec)
        stored = files.stored_dtype
        dtype = choose_dtype(dtype, device, stored, generates, files.spec)
        model = files.in_dtype(dtype).spec
    elif any(value is not None for value in asked.reading().values()):
        *names, last = READING
        raise ValueError(
            f"{', '.join(names)} and {last} go with a folder or a name: a spec says all of this "
            "itself"
        )
    elif "quantized" in model:
        stored = "stored"
    chosen = choose_dtype(dtype, device, stored, generates, model)
    if chosen != "stored":
        model = {name: value for name, value in model.items() if name != "quantized"}
    given = asked.of_session(chosen, generates)
    if generates:
        return plan_generation(model, given)
    return MemoryPlan.from_native(_session.plan_memory(json.dumps(model), given))


def plan_generation(spec: Mapping[str, Any], options: LoadOptions) -> GenerationMemoryPlan:
    """The plan of a model that generates."""
    from packhorse._native import generation as _generation

    draft = open_draft(options)
    return GenerationMemoryPlan.of_generation(
        _generation.plan_generation(json.dumps(spec), options, None if draft is None else draft[:2])
    )
