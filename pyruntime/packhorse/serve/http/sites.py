"""Whose pages may use the server from a browser.

A browser sends what a page of any site asks it to send, to this machine too. It says so, by headers
that pages cannot change: the site of the page (`Origin`, `Sec-Fetch-Site`), and the name by which
the server was found (`Host`): another site's, where that has its name point to this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from packhorse.serve.errors import ServeError
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import Settings

_SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing
_ALL = "*"


class Sites:
    """Checks requests by what the settings allow."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._origins = {one.lower() for one in settings.cors_allow_origin}
        self._hosts = {_name(one.lower()) for one in settings.allowed_host}
        self._checks_host = bool(self._hosts)
        self._metrics = metrics

    def listen_at(self, host: str) -> None:
        """Takes no other names where the server is for its own machine alone."""
        self._checks_host = self._checks_host or is_loopback(host)

    def check(self, method: str, headers: Mapping[bytes, bytes]) -> None:
        """Raises ServeError ("forbidden") for a request of a page of another site."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._checks_host and host and not self._is_ours(host):
            self._refuse(f"{host!r:.80} is not a name of this server: see allowed_host")
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site")
        if origin is None:
            if site in (b"cross-site", b"same-site") and method not in _SAFE:
                self._refuse("the page of another site may not use this server")
        elif site != b"same-origin" and not self._may(origin.decode("latin-1").lower(), host):
            self._refuse(
                f"a page of {origin.decode('latin-1')!r:.80} may not use this server: see "
                "cors_allow_origin"
            )

    def _may(self, origin: str, host: str) -> bool:
        if _ALL in self._origins or origin in self._origins:
            return True
        address = origin.partition("://")[2]
        return bool(address) and (address == host or _name(address) in self._hosts)

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        if name in self._hosts or _ALL in self._hosts or is_loopback(name):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # a number has no owner who could have it point elsewhere

    def _refuse(self, message: str) -> None:
        self._metrics.refused("site")
        raise ServeError("forbidden", message)


def _name(host: str) -> str:
    """The name in "name:port", "[::1]:port" or a name alone."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def is_loopback(host: str) -> bool:
    """True where it leads to this machine alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
