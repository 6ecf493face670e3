"""The models of a server by their names: loaded, replaced and unloaded while others serve."""

from __future__ import annotations

import asyncio

from packhorse.serve.errors import ServeError
from packhorse.serve.loading import load_model
from packhorse.serve.metrics import Metrics
from packhorse.serve.model import ServedModel
from packhorse.serve.settings import ModelSettings, Settings
from packhorse.serve.tokenizing import TokenizerPool


class Registry:
    """Used on the event loop alone: who gets a model and puts work into its queue without waiting
    in between never finds it closed. Loading and unloading take turns."""

    def __init__(self, settings: Settings, pool: TokenizerPool, metrics: Metrics) -> None:
        self._settings = settings
        self._pool = pool
        self._metrics = metrics
        self._models: dict[str, ServedModel] = {}
        self._changing = asyncio.Lock()

    def models(self) -> list[ServedModel]:
        """In the order in which they were loaded."""
        return list(self._models.values())

    def get(self, name: str | None, method: str, what: str) -> ServedModel:
        """The model of this name or, of those that can `method`, the first.

        what  names such models in messages

        Raises ServeError: there is no such model, or it is not made for that.
        """
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

    def first(self) -> ServedModel:
        """The model that is meant where none is named. Raises ServeError where there is none."""
        for model in self._models.values():
            return model
        raise ServeError("no_model", "no model is loaded")

    def named(self, name: str) -> ServedModel:
        """The model of this name. Raises ServeError."""
        found = self._models.get(name)
        if found is None:
            known = ", ".join(self._models) or "none is loaded"
            raise ServeError(
                "no_model", f"there is no model {name!r:.80}, but: {known}", parameter="model"
            )
        return found

    async def load(self, settings: ModelSettings, *, replace: bool = False) -> ServedModel:
        """Loads a model. Where there is one of its name, raises ServeError or, with `replace`,
        takes its place; the old one finishes what it has. Otherwise raises as `TextModel.load`,
        and nothing has changed."""
        async with self._changing:
            old = self._models.get(settings.name)
            if old is not None and not replace:
                raise ServeError("conflict", f"there is a model {settings.name!r:.80} already")
            model = await asyncio.to_thread(
                load_model, settings, self._settings, self._pool, self._metrics
            )
            self._models = {**self._models, settings.name: model}
            if old is not None:
                await old.close()
            return model

    async def unload(self, name: str) -> None:
        """Takes a model out, which finishes what it has. Raises ServeError where there is none."""
        async with self._changing:
            model = self.named(name)
            self._models = {key: one for key, one in self._models.items() if key != name}
            await model.close()

    async def reload(self, name: str) -> ServedModel:
        """Loads a model anew from where it came from. Raises as `load`."""
        return await self.load(self.named(name).settings, replace=True)

    async def close(self) -> None:
        """Unloads all of them."""
        for name in list(self._models):
            await self.unload(name)
