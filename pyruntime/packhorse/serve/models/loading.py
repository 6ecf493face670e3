"""Models loaded as the settings say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packhorse_weights import find_model, inspect_checkpoint
from packhorse_weights.generation_files import generates

from packhorse.heads import methods_for
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.tokenizing import TokenizerPool
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.text import TextModel

# Settings that suit models which generate, and no others.
_GENERATING = (
    "kv_tokens",
    "kv_cache_dtype",
    "max_adapters",
    "max_adapter_rank",
    "draft",
    "draft_tokens",
)
_PREDICTIONS = 64  # masks of a batch, where nobody says how many


def load_model(
    settings: ModelSettings, server: Settings, pool: TokenizerPool, metrics: Metrics
) -> ServedModel:
    """Loads a model on each of its devices, and starts its threads. What the settings of all models
    say goes to those that it suits. Raises as `TextModel.load`."""
    given = server.of_model(settings)
    methods = abilities(given)
    if "generate" not in methods:
        unsuited: dict[str, Any] = {
            name: None for name in _GENERATING if getattr(settings, name) is None
        }
        given = replace(given, **unsuited)
    if settings.max_predictions is None and "fill_mask" not in methods:
        given = replace(given, max_predictions=0)
    options: dict[str, Any] = {
        "dtype": given.dtype,
        "max_length": given.max_length,
        "max_tokens": given.max_batch_tokens,
        "kv_tokens": given.kv_tokens,
        "kv_cache_dtype": given.kv_cache_dtype,
        "max_predictions": _PREDICTIONS if given.max_predictions is None else given.max_predictions,
        "max_adapters": max(given.max_adapters or 0, len(given.adapter)),
        "max_adapter_rank": given.max_adapter_rank or 16,
        "prefix_cache": server.prefix_cache != "off",
        "draft": given.draft,
        "draft_tokens": given.draft_tokens,
        "generation_config": given.generation_config is not False,
        "revision": given.revision,
        "pooling": _poolings(given.pooling),
        "normalize": given.normalize,
        "reranker": _template(given.reranker),
        "progress": False,  # the log says it
    }
    replicas: list[TextModel] = []
    try:
        for device in given.device or ("cpu",):
            threads = given.threads if device == "cpu" else None
            replicas.append(TextModel.load(given.path, device, threads=threads, **options))
        model = ServedModel(given, server, replicas, pool, metrics)
        for adapter in given.adapter:
            model.add_adapter(*_named(adapter))
        return model
    except BaseException:
        for replica in replicas:
            replica.close()
        raise


def abilities(given: ModelSettings) -> list[str]:
    """What a model may be loaded for by its files, as `methods_for` says it; of a head of a masked
    language model, which other heads use, "fill_mask" too only where that is what it is for.
    Raises as `TextModel.load`."""
    path = find_model(given.path, given.revision)
    asked = (_template(given.reranker), _poolings(given.pooling), given.normalize)
    spec = inspect_checkpoint(path, *asked).spec
    methods = [name for name in methods_for(spec) if name != "generate"]
    if given.kv_tokens != 0 and generates(path, spec, None, *asked):
        methods.append("generate")
    if "embed_sparse" in methods and "fill_mask" in methods:
        methods.remove("fill_mask")
    return methods


def assign_adapters(server: Settings) -> list[ModelSettings]:
    """The models that a server begins with, each with its adapters. Raises ValueError for an
    adapter that belongs to none of them, or might to several, and for names that come twice."""
    models = {one.name: one for one in server.models}
    for adapter in server.adapter:
        head, equals, path = adapter.partition("=")
        parent, _, name = head.rpartition(":")
        if not parent:
            able = [one for one in models.values() if "generate" in abilities(server.of_model(one))]
            if len(able) != 1:
                names = ", ".join(one.name for one in able) or "none"
                raise ValueError(
                    f"adapter {adapter!r:.80}: of the models {names} generate; with several, say "
                    "MODEL:NAME=FOLDER"
                )
            parent = able[0].name
        if parent not in models:
            raise ValueError(f"adapter {adapter!r:.80}: there is no model {parent!r:.80}")
        found = models[parent]
        models[parent] = replace(found, adapter=(*found.adapter, f"{name}{equals}{path}"))
    taken = [*models]
    taken += [_named(adapter)[0] for one in models.values() for adapter in one.adapter]
    for name in taken:
        if taken.count(name) > 1:
            raise ValueError(f"{taken.count(name)} models and adapters are named {name!r:.80}")
    return list(models.values())


def _named(adapter: str) -> tuple[str, str]:
    """(name, folder) of a setting."""
    name, _, path = adapter.partition("=")
    if not name or not path:
        raise ValueError(f"adapter is {adapter!r:.80}, expected NAME=FOLDER")
    return name, path


def check_suited(server: Settings, models: Sequence[ServedModel]) -> None:
    """Raises ValueError for a setting of all models that suits none of them."""
    suited = [(name, "generate", "generates") for name in _GENERATING]
    for name, method, what in (*suited, ("max_predictions", "fill_mask", "fills masks")):
        value = getattr(server, name)
        if value and models and not any(method in model.methods for model in models):
            names = ", ".join(model.name for model in models)
            raise ValueError(f"{name} is {value}, but no model {what}: {names}")


def _poolings(pooling: str | None) -> Any:
    names = [] if pooling is None else pooling.split(",")
    return names[0] if len(names) == 1 else names or None


def _template(reranker: str | None) -> Any:
    if reranker is None or not reranker.endswith(".json"):
        return reranker
    from packhorse_weights.files import read_json

    return read_json(Path(reranker), named=True)
