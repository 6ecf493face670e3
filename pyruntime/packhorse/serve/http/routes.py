"""Look-up of the route that a request goes to. It comes before everything else, so it is fast."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from packhorse.serve.errors import ServeError
from packhorse.serve.http.endpoint import (
    Endpoint,
    Handler,
    Style,
    cohere_style,
    openai_style,
    tei_style,
)
from packhorse.serve.http.exchange import Exchange, Receive, Reply, Scope, Send
from packhorse.serve.http.field_names import FieldNames
from packhorse.serve.http.service import Service


class Route(NamedTuple):
    """A route. A path that ends in a slash takes what comes after it, as `scope["rest"]`.

    public  whether it needs no API key
    names   of the library's arguments, in its errors
    """

    method: str
    path: str
    handler: Handler
    style: Style
    public: bool = False
    names: FieldNames = MappingProxyType({})


class Routes:
    """An ASGI application of many routes."""

    def __init__(self, service: Service, lines: Sequence[Route]) -> None:
        self._service = service
        self._exact: dict[str, dict[str, Endpoint]] = {}
        for line in lines:
            endpoint = Endpoint(
                service, line.path, line.handler, line.style, line.names, public=line.public
            )
            self._exact.setdefault(line.path, {})[line.method] = endpoint
        self._open = [path for path in self._exact if path.endswith("/") and path != "/"]
        for methods in self._exact.values():
            if "GET" in methods:
                methods.setdefault("HEAD", methods["GET"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served here")
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        path = path[len(root) :] if root and path.startswith(root) else path
        methods = self._exact.get(path)
        if methods is None or path in self._open:
            methods = None
            for beginning in self._open:
                if path.startswith(beginning) and path != beginning:
                    methods = self._exact[beginning]
                    scope["rest"] = path[len(beginning) :]
        endpoint = None if methods is None else methods.get(scope["method"])
        if endpoint is None:
            endpoint = self._refusal(path, scope["method"], methods)
        await endpoint(scope, receive, send)

    def _refusal(self, path: str, method: str, methods: dict[str, Endpoint] | None) -> Endpoint:
        """Endpoint that refuses a path without a route, or a method that the route does not
        take."""

        async def refuse(_exchange: Exchange) -> Reply:
            if methods is None:
                raise ServeError("no_route", f"there is no route {path[:80]!r}")
            allowed = ", ".join(methods)
            raise ServeError("no_method", f"{path} takes {allowed}, not {method}", allow=allowed)

        return Endpoint(self._service, "other", refuse, style_of(path), {}, public=True)


def style_of(path: str) -> Style:
    """Wording of errors on a path that has no route."""
    if path.startswith("/v2/"):
        return cohere_style
    return openai_style if path.startswith("/v1/") else tei_style
