"""The page at /, on which people try the models in a browser: files of the folder `page` of this
package. It needs no key; what it asks of the server does."""

from __future__ import annotations

import mimetypes
from functools import cache
from pathlib import Path

from packhorse.serve.errors import ServeError
from packhorse.serve.http.exchange import Exchange, Reply

_FOLDER = Path(__file__).parents[1] / "page"
# The page runs its own script, talks to its own server, and nobody else's page may frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)


@cache
def _files() -> dict[str, tuple[bytes, bytes]]:
    """Name -> (content, its type)."""
    found = {}
    for path in _FOLDER.iterdir():
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        found[path.name] = path.read_bytes(), f"{kind}{charset}".encode()
    return found


def _reply(name: str) -> Reply:
    content, kind = _files()[name]
    return Reply(content, headers=list(_HEADERS), content_type=kind)


async def index(exchange: Exchange) -> Reply:
    """GET /: the page; without the setting `page` only that the server answers."""
    if exchange.service.settings.page:
        return _reply("index.html")
    return Reply(b"", content_type=b"text/plain; charset=utf-8")


async def file(exchange: Exchange) -> Reply:
    """GET /page/{name}: a file of the page."""
    name: str = exchange.scope["rest"]
    if not exchange.service.settings.page or name not in _files():
        raise ServeError("no_route", f"there is no file {name[:80]!r}")
    return _reply(name)
