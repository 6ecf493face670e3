"""The models of a server: listed, loaded, reloaded and unloaded while others serve."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields
from packhorse.serve.http.exchange import Exchange, Reply, json_reply
from packhorse.serve.models.registry import AnyServed
from packhorse.serve.models.served import Adapter
from packhorse.serve.protocols.tei_text import longest_input
from packhorse.serve.settings import ModelSettings

Loaded = TypeVar("Loaded")
_RELOAD = "/reload"


def _about(model: AnyServed) -> dict[str, Any]:
    session = model.session
    found: dict[str, Any] = {
        "name": model.name,
        "path": model.path,
        "methods": sorted(model.methods),
        "family": session.config.get("family"),
        "dtype": session.dtype,
        "stored_bits": sorted({one["bits"] for one in session.config.get("quantized", ())}),
        "devices": model.devices,
        "max_input_length": longest_input(model),
        "max_batch_tokens": session.max_tokens,
        "memory_bytes": model.memory_bytes,
        "loaded_at": model.created,
        "healthy": model.healthy,
        "queue_tokens": model.queue_tokens,
        "queue_requests": model.queue_requests,
        "tokens_per_second": round(model.queue.throughput.tokens_per_second, 1),
    }
    if model.generates:
        found["generation"] = model.stats()
        if (languages := model.languages()) is not None:
            found["languages"] = languages
        found["adapters"] = [_about_adapter(model, one) for one in model.adapters.values()]
    return found


def _about_adapter(model: AnyServed, adapter: Adapter) -> dict[str, Any]:
    return {
        "name": adapter.name,
        "path": adapter.path,
        "parent": model.name,
        "loaded_at": adapter.created,
    }


async def list_models(exchange: Exchange) -> Reply:
    """GET /models: what is loaded, and what it does at the moment."""
    return json_reply([_about(model) for model in exchange.service.registry.models()])


async def show_model(exchange: Exchange) -> Reply:
    """GET /models/{name}."""
    registry = exchange.service.registry
    name: str = exchange.scope["rest"]
    model = registry.named(name)
    adapter = model.adapters.get(name)
    return json_reply(_about(model) if adapter is None else _about_adapter(model, adapter))


def _check_admin(exchange: Exchange) -> None:
    if not exchange.service.settings.admin:
        raise ServeError(
            "forbidden", "models are not changed over the network: start the server with --admin"
        )


async def load_model(exchange: Exchange) -> Reply:
    """POST /models: loads a model. The body is as a table [[models]] of the configuration; or an
    adapter of the model that "parent" names."""
    _check_admin(exchange)
    values = await exchange.json()
    if values.get("parent") is not None:
        return await _load_adapter(exchange, Fields(values))
    try:
        settings = ModelSettings.read(values)
    except ValueError as error:
        raise ServeError("validation", str(error)) from None
    loading = exchange.service.registry.load(settings)
    return json_reply(_about(await _loaded(settings.name, loading)), status=201)


async def _load_adapter(exchange: Exchange, fields: Fields) -> Reply:
    parent, name, path = (fields.text(one) for one in ("parent", "name", "path"))
    fields.refuse_rest({})
    registry = exchange.service.registry
    adapter = await _loaded(name, registry.load_adapter(parent, name, path))
    return json_reply(_about_adapter(registry.named(parent), adapter), status=201)


async def change_model(exchange: Exchange) -> Reply:
    """POST /models/{name}/reload: loads a model anew, and then lets go of the old one."""
    _check_admin(exchange)
    rest: str = exchange.scope["rest"]
    if not rest.endswith(_RELOAD):
        raise ServeError("no_route", f"there is no route /models/{rest:.80}")
    name = rest.removesuffix(_RELOAD)
    return json_reply(_about(await _loaded(name, exchange.service.registry.reload(name))))


async def _loaded(name: str, loading: Awaitable[Loaded]) -> Loaded:
    """Awaits the loading of a model, with errors as they are served."""
    try:
        return await loading
    except (ValueError, OSError) as error:
        raise ServeError("validation", f"model {name!r:.80}: {error}") from error
    except (RuntimeError, MemoryError, ModuleNotFoundError) as error:
        raise ServeError("backend", f"model {name!r:.80}: {error}") from error


async def unload_model(exchange: Exchange) -> Reply:
    """DELETE /models/{name}: unloads a model or an adapter, when what it has is done."""
    _check_admin(exchange)
    await exchange.service.registry.unload(exchange.scope["rest"])
    return Reply(b"", status=204)
