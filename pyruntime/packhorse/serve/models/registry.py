"""The models of a server by their names: loaded, replaced and unloaded while others serve."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import NamedTuple

from packhorse.serve.errors import ServeError
from packhorse.serve.models.images import ServedImages
from packhorse.serve.models.loading import load_model
from packhorse.serve.models.model import ServedModel
from packhorse.serve.models.served import Adapter
from packhorse.serve.models.speech import ServedSpeech
from packhorse.serve.models.tokenizing import TokenizerPool
from packhorse.serve.observability.logs import log
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import ModelSettings, Settings


class Generator(NamedTuple):
    """Model that generates, or an adapter of it, that a name stands for.

    adapter  the adapter of the model that is meant; None: the model as it is
    """

    model: ServedModel
    name: str
    adapter: str | None


AnyServed = ServedModel | ServedImages | ServedSpeech


class Registry:
    """Used on the event loop alone: who gets a model and puts work into its queue without waiting
    in between never finds it closed. Loading and unloading take turns."""

    def __init__(self, settings: Settings, pool: TokenizerPool, metrics: Metrics) -> None:
        self._settings = settings
        self._pool = pool
        self._metrics = metrics
        self._models: dict[str, AnyServed] = {}
        self._changing = asyncio.Lock()

    def models(self) -> list[AnyServed]:
        """The models in the order in which they were loaded."""
        return list(self._models.values())

    def get(self, name: str | None, method: str, what: str) -> ServedModel:
        """The model of texts of this name or, of those that can `method`, the first.

        what  names such models in messages

        Raises ServeError: there is no such model, or it is not made for that.
        """
        found = self._find(name, method, what)
        if isinstance(found, ServedSpeech):
            found.require("", what)
        assert not isinstance(found, ServedSpeech)
        return found.required_texts if isinstance(found, ServedImages) else found

    def speech(self, name: str | None) -> ServedSpeech:
        """The model of speech of this name or, without one, the first; as `get`."""
        found = self._find(name, "transcribe", "a model of speech")
        assert isinstance(found, ServedSpeech)
        return found

    def images(self, name: str | None, method: str, what: str) -> ServedImages:
        """The model of images of this name or, of those that can `method`, the first; as `get`."""
        found = self._find(name, method, what)
        assert isinstance(found, ServedImages)
        return found

    def embeds_images(self, name: str | None) -> bool:
        """True if the model of this name or, without one, the first that embeds anything, takes
        images."""
        if name:
            return isinstance(self._models.get(name), ServedImages)
        able = [one for one in self._models.values() if {"embed", "embed_images"} & one.methods]
        return bool(able) and isinstance(able[0], ServedImages)

    def _find(self, name: str | None, method: str, what: str) -> AnyServed:
        models = self._models
        if name is None or name == "":
            for model in models.values():
                if method in model.methods:
                    return model
            found = self.first()
        else:
            found = self.named(name)
        found.require(method, what)
        return found

    def first(self) -> AnyServed:
        """The model that is meant where none is named. Raises ServeError where there is none."""
        for model in self._models.values():
            return model
        raise ServeError("no_model", "no model is loaded")

    def named(self, name: str) -> AnyServed:
        """The model of this name, or that of the adapter of this name. Raises ServeError."""
        found = self._models.get(name) or self.parent(name)
        if found is None:
            known = ", ".join(self._names()) or "none is loaded"
            raise ServeError(
                "no_model", f"there is no model {name!r:.80}, but: {known}", parameter="model"
            )
        return found

    def parent(self, name: str) -> AnyServed | None:
        """The model that has an adapter of this name; None where there is no such adapter."""
        models = self._models.values()
        return next((model for model in models if name in model.adapters), None)

    def generator(self, name: str | None, what: str) -> Generator:
        """The model or adapter of this name; as `get`."""
        if name and isinstance(parent := self.parent(name), ServedModel):
            return Generator(parent, name, name)
        model = self.get(name, "generate", what)
        return Generator(model, model.name, None)

    def _names(self) -> list[str]:
        return [*self._models, *(name for one in self._models.values() for name in one.adapters)]

    async def load_adapter(self, parent: str, name: str, path: str) -> Adapter:
        """Loads an adapter of a model under a name of its own. Raises ServeError, and as
        `ServedModel.add_adapter`; then nothing has changed."""
        async with self._changing:
            if name in self._names():
                raise ServeError("conflict", f"there is a model {name!r:.80} already")
            model = self._models.get(parent)
            if model is None:
                raise ServeError(
                    "no_model", f"there is no model {parent!r:.80}", parameter="parent"
                )
            await asyncio.to_thread(model.add_adapter, name, path)
            log(logging.INFO, "loaded an adapter", model=parent, adapter=name, source=path)
            return model.adapters[name]

    async def load(self, settings: ModelSettings, *, replacing: bool = False) -> AnyServed:
        """Loads a model. Where there is one of its name, raises ServeError or, with `replacing`,
        takes its place; the old one finishes what it has. Otherwise raises as `TextModel.load`,
        and nothing has changed."""
        async with self._changing:
            old = self._models.get(settings.name)
            if not replacing and settings.name in self._names():
                raise ServeError("conflict", f"there is a model {settings.name!r:.80} already")
            log(logging.INFO, "loading", model=settings.name, source=settings.path)
            began = time.monotonic()
            model = await asyncio.to_thread(
                load_model, settings, self._settings, self._pool, self._metrics
            )
            log(
                logging.INFO,
                "loaded",
                model=model.name,
                source=model.path,
                dtype=model.session.dtype,
                devices=model.devices,
                memory_bytes=model.memory_bytes,
                seconds=round(time.monotonic() - began, 2),
            )
            self._models = {**self._models, settings.name: model}
            if old is not None:
                await old.close()
            return model

    async def unload(self, name: str) -> None:
        """Takes a model or an adapter out; requests that run finish with it. Raises ServeError
        where there is none."""
        async with self._changing:
            if (parent := self.parent(name)) is not None:
                await asyncio.to_thread(parent.remove_adapter, name)
                return
            model = self.named(name)
            self._models = {key: one for key, one in self._models.items() if key != name}
            await model.close()

    async def reload(self, name: str) -> AnyServed:
        """Loads a model anew from where it came from, with the adapters that it has now. Raises as
        `load`, and ServeError for an adapter."""
        if self.parent(name) is not None:
            raise ServeError(
                "validation", f"{name!r:.80} is an adapter: unload it, and load it anew"
            )
        model = self.named(name)
        adapters = tuple(f"{one.name}={one.path}" for one in model.adapters.values())
        return await self.load(replace(model.settings, adapter=adapters), replacing=True)

    async def close(self) -> None:
        """Unloads all of them."""
        for name in list(self._models):
            await self.unload(name)
