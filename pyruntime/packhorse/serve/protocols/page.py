"""The page at /: files of the folder `page` of this package, where there are any."""

from __future__ import annotations

import mimetypes
from functools import cache
from pathlib import Path

from packhorse.serve.errors import ServeError
from packhorse.serve.exchange import Exchange, Reply

_FOLDER = Path(__file__).parents[1] / "page"


@cache
def _files() -> dict[str, tuple[bytes, bytes]]:
    """Name -> (content, its type)."""
    found = {}
    for path in _FOLDER.glob("*") if _FOLDER.is_dir() else ():
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        found[path.name] = path.read_bytes(), f"{kind}{charset}".encode()
    return found


def _reply(name: str) -> Reply:
    content, kind = _files()[name]
    return Reply(content, headers=[(b"cache-control", b"no-cache")], content_type=kind)


async def index(_exchange: Exchange) -> Reply:
    """GET /: the page; where there is none, only that the server answers."""
    if "index.html" in _files():
        return _reply("index.html")
    return Reply(b"", content_type=b"text/plain; charset=utf-8")


async def file(exchange: Exchange) -> Reply:
    """GET /page/{name}: a file of the page."""
    name: str = exchange.scope["rest"]
    if name not in _files():
        raise ServeError("no_route", f"there is no file {name[:80]!r}")
    return _reply(name)
