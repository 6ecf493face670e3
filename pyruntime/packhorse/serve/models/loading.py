"""Models loaded as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from packhorse_weights import find_model, inspect_checkpoint
from packhorse_weights.spec import hears, sees

from packhorse.audio import AudioModel
from packhorse.heads import methods_for
from packhorse.image import ImageModel
from packhorse.load_options import READING, LoadOptions
from packhorse.option_fields import said
from packhorse.serve.models.images import ServedImages
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.speech import ServedSpeech
from packhorse.serve.models.tokenizing import TokenizerPool
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import LOADING, ModelSettings, Settings
from packhorse.text import TextModel

_PREDICTIONS = 64  # masks of a batch, where nobody says how many
_LOADING = {one.name: said(one) for one in LOADING.values()}
# Options that models of images and of speech take, too.
_SHARED = {one.name for one in fields(LoadOptions)}
AnyModel = ServedModel | ServedImages | ServedSpeech
_METHODS = {"generate": "generates", "fill_mask": "fills masks"}


def load_model(
    settings: ModelSettings, server: Settings, pool: TokenizerPool, metrics: Metrics
) -> ServedModel | ServedImages | ServedSpeech:
    """Loads a model on each of its devices, and starts its threads. What the settings of all models
    say goes to those that it suits. Raises as `TextModel.load` and `ImageModel.load`."""
    given = server.of_model(settings)
    methods = abilities(given)
    given = replace(given, options=_suited(settings, given, methods))
    if "embed_images" in methods:
        return _load_images(settings, given, server, pool, metrics)
    if "transcribe" in methods:
        return _load_speech(settings, given, server, pool, metrics)
    most = _PREDICTIONS if "fill_mask" in methods else 0
    options = _read({"max_predictions": most, **given.options})
    options["max_adapters"] = max(options.get("max_adapters", 0), len(given.adapter))
    options["prefix_cache"] = server.prefix_cache != "off"
    with _replicas(TextModel.load, given, options) as replicas:
        model = ServedModel(given, server, replicas, pool, metrics)
        for adapter in given.adapter:
            model.add_adapter(*_named(adapter))
        return model


def _suited(own: ModelSettings, given: ModelSettings, methods: Collection[str]) -> Any:
    """The options of a model, of which those are left out that are meant for other models: what
    only the settings of all models say, and this one has no use for."""
    return {
        name: value
        for name, value in given.options.items()
        if name in own.options or not value or _suits(_LOADING[name].suits, methods)
    }


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _LOADING[name].from_text(value) for name, value in options.items()}


def _of_devices(
    given: ModelSettings, options: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(device, arguments of `load`) of each replica."""
    for device in given.device or ("cpu",):
        threads = options.get("threads") if device == "cpu" else None
        # The log says that it is loading.
        yield device, {**options, "threads": threads, "progress": False}


@contextmanager
def _replicas(
    load: Callable[..., Any], given: ModelSettings, options: Mapping[str, Any]
) -> Iterator[list[Any]]:
    """A model loaded on each of its devices. An error of what is done with them closes all."""
    replicas: list[Any] = []
    try:
        for device, arguments in _of_devices(given, options):
            replicas.append(load(given.path, device, **arguments))
        yield replicas
    except BaseException:
        for replica in replicas:
            replica.close()
        raise


def _suits(method: str, methods: Collection[str]) -> bool:
    """True if a model that can `methods` has use for an option of `method`; "": any."""
    speaks = method == "generate" and "transcribe" in methods
    return not method or method in methods or speaks


def _read_shared(
    own: ModelSettings, given: ModelSettings, takes: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of `load` of a model that takes no texts. Raises ValueError for what the model's
    own settings say and is for texts alone. takes: what it takes, for messages."""
    for name in own.options:
        if name not in _SHARED:
            raise ValueError(f"{name} is for models of texts, and {given.path} takes {takes}")
    if given.adapter:
        raise ValueError(f"{given.path} takes {takes}: it has no adapters")
    return _read({k: v for k, v in given.options.items() if k in _SHARED}) | dict(more)


def _load_speech(
    own: ModelSettings,
    given: ModelSettings,
    server: Settings,
    pool: TokenizerPool,
    metrics: Metrics,
) -> ServedSpeech:
    cache = {"prefix_cache": server.prefix_cache != "off"}
    options = _read_shared(own, given, "audio", cache)
    with _replicas(AudioModel.load, given, options) as replicas:
        return ServedSpeech(given, server, replicas, pool, metrics)


def _load_images(
    own: ModelSettings,
    given: ModelSettings,
    server: Settings,
    pool: TokenizerPool,
    metrics: Metrics,
) -> ServedImages:
    options = _read_shared(own, given, "images", {})
    with _replicas(ImageModel.load, given, options) as replicas:
        return ServedImages(given, server, replicas, pool, metrics)


def abilities(given: ModelSettings) -> list[str]:
    """Names of methods that a model supports by its files, as `methods_for` gives them; of models
    of images, "embed_images". "fill_mask" is left out where the head of a masked language model
    serves sparse embeddings. Raises as `TextModel.load`."""
    load: Mapping[str, Any] = given.options
    decides = (*READING, "kv_tokens")
    asked = LoadOptions(**_read({name: load[name] for name in decides if name in load}))
    path = find_model(given.path, asked.revision)
    asked = replace(asked, revision=None, kv_tokens=0 if asked.kv_tokens == 0 else None)
    spec = inspect_checkpoint(path, **asked.reading()).spec
    if sees(spec):
        return ["embed_images"]
    if hears(spec):
        return ["transcribe"]
    methods = [name for name in methods_for(spec) if name != "generate"]
    if asked.generates(path, spec):
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


def check_suited(server: Settings, models: Sequence[AnyModel]) -> None:
    """Raises ValueError for a setting of all models that suits none of them."""
    for name, one in LOADING.items():
        method = said(one).suits
        value = server.options.get(one.name)
        suited = any(_suits(method, model.methods) for model in models)
        if value and models and not suited:
            names = ", ".join(model.name for model in models)
            raise ValueError(f"{name} is {value}, but no model {_METHODS[method]}: {names}")
