"""Images fetched from the hosts that whoever runs the server has named, and from nowhere else.

A client that could have the server ask any address would reach what only the server reaches: its
own machine, its network, the services of its cloud. So a host must be named, and each address that
it has must be public or named, too. The address that was checked is the one that is asked: a name
that points elsewhere a moment later has no effect. Redirects lead to the same host alone.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn
from urllib.parse import SplitResult, urljoin, urlsplit

from packhorse.serve.errors import ServeError
from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import Settings

_PORTS = {"http": 80, "https": 443}
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_AT_ONCE = 65_536
_MOST_URL = 2048  # characters
_KINDS = ("image/", "application/octet-stream", "binary/octet-stream")
_HEADERS = {
    "Accept": "image/webp, image/png, image/jpeg",
    "Accept-Encoding": "identity",
    "User-Agent": "packhorse",
}

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class _Host(NamedTuple):
    """A host that was named. name: "*.example.com" stands for all below it."""

    name: str
    port: int | None

    def suits(self, name: str, port: int, scheme: str) -> bool:
        if (self.port or _PORTS[scheme]) != port:
            return False
        if self.name.startswith("*."):
            return name.endswith(self.name[1:])
        return name == self.name


class _Failed(Exception):  # noqa: N818  (never leaves this module)
    """The image could not be fetched; the message says why."""


class ImageUrls:
    """Fetches images. Any number of threads may use it."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Raises ValueError for a host that is none."""
        self._hosts: list[_Host] = []
        self._networks: list[Network] = []  # addresses that a URL may name
        self._reachable: list[Network] = []  # addresses that a name may have, beside public ones
        for given in settings.allow_image_urls:
            self._add(given.lower())
        self._most = settings.max_image_bytes
        self._timeout_s = settings.image_url_timeout_s
        self._metrics = metrics

    def _add(self, given: str) -> None:
        with suppress(ValueError):
            network = ipaddress.ip_network(given, strict=False)
            self._networks.append(network)
            self._reachable.append(network)
            return
        try:
            split = urlsplit(f"//{given}")
            name, port = split.hostname, split.port
        except ValueError:
            name = None
        if not name or split.netloc != given or "@" in given or name.strip("*.") == "":
            raise ValueError(
                f"allow_image_urls: {given!r:.80} is no host, expected NAME, NAME:PORT, *.DOMAIN, "
                "an address or a network"
            )
        self._hosts.append(_Host(name, port))
        with suppress(ValueError):
            self._reachable.append(ipaddress.ip_network(name))

    def check(self, name: str, url: str) -> None:
        """Raises ServeError for a URL that is not asked. name: of the field."""
        try:
            self._place(url)
        except _Failed as error:
            self._metrics.refused("image_url")
            raise ServeError("unsupported", f"{name}: {error}", parameter=name) from None

    def fetch(self, name: str, url: str) -> bytes:
        """The bytes that a URL leads to, on a thread. Raises ServeError. name: of the field."""
        end = time.monotonic() + self._timeout_s
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                found = self._ask(url, end)
                if isinstance(found, bytes):
                    return found
                target = urljoin(url, found)
                before, after = self._place(url), self._place(target)
                if before.hostname != after.hostname:
                    raise _Failed("it leads to another host")
                if before.scheme == "https" != after.scheme:
                    raise _Failed("it leads from https to http")
                url = target
            raise _Failed(f"more than {_MOST_REDIRECTS} redirects")
        except _Failed as error:
            reason = str(error)
        except ssl.SSLError as error:
            reason = f"the host's TLS failed: {error.reason}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = time.monotonic() >= end or isinstance(error, TimeoutError)
            reason = f"no answer in {self._timeout_s:g} s" if late else "the host gave no answer"
        raise ServeError("validation", f"{name}: the URL: {reason}", parameter=name)

    def _place(self, url: str) -> SplitResult:
        """The parts of a URL that may be asked. Raises _Failed."""
        if not self._hosts and not self._networks:
            raise _Failed(
                "URLs are not fetched: send the image as a data URL, or name its host by "
                "allow_image_urls"
            )
        if len(url) > _MOST_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise _Failed(f"is no URL of at most {_MOST_URL} characters of ASCII")
        try:
            split = urlsplit(url)
            name, port = split.hostname, split.port
        except ValueError:
            raise _Failed(f"{url!r:.80} is no URL") from None
        if split.scheme not in _PORTS or not name:
            raise _Failed(f"{url!r:.80} is not a URL of http or https")
        if split.username is not None or split.password is not None:
            raise _Failed("a URL with a user or a password is not asked")
        asked = port or _PORTS[split.scheme]
        named = any(host.suits(name, asked, split.scheme) for host in self._hosts)
        if not named and not (asked == _PORTS[split.scheme] and self._is_named_address(name)):
            raise _Failed(f"{split.netloc!r:.80} is no host of allow_image_urls")
        return split

    def _is_named_address(self, name: str) -> bool:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def _address(self, name: str, port: int) -> str:
        """The address to ask: the first, where all may be asked. Raises _Failed, OSError."""
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        addresses = [str(one[4][0]) for one in found]
        for text in addresses:
            address = ipaddress.ip_address(text.partition("%")[0])
            for one in _meant(address):
                public = one.is_global and not one.is_multicast
                if not public and not any(one in network for network in self._reachable):
                    raise _Failed("the host has an address that is not public, and was not named")
        return addresses[0]

    def _ask(self, url: str, end: float) -> bytes | str:
        """The content, or where a redirect leads. Raises _Failed, OSError, HTTPException."""
        split = self._place(url)
        assert split.hostname is not None
        port = split.port or _PORTS[split.scheme]
        address = self._address(split.hostname, port)
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection = _connect(split.scheme, split.hostname, address, port, left)
        # A host that sends a byte now and then never runs into the timeout of one read.
        watch = threading.Timer(left, _closer(connection))
        watch.daemon = True
        watch.start()
        try:
            path = split.path or "/"
            target = f"{path}?{split.query}" if split.query else path
            connection.request("GET", target, headers={**_HEADERS, "Host": split.netloc})
            response = connection.getresponse()
            if response.status in _REDIRECTS:
                return response.getheader("Location") or _fail("a redirect without a target")
            return self._read(response)
        finally:
            watch.cancel()
            connection.close()

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        if response.status != 200:
            raise _Failed(f"the host answered {response.status}")
        kind = response.getheader("Content-Type", _KINDS[-1]).lower()
        if not kind.startswith(_KINDS):
            raise _Failed(f"it is of type {kind!r:.40}, expected an image")
        if response.getheader("Content-Encoding", "identity") != "identity":
            raise _Failed("the host compresses it, which was not asked for")
        found = bytearray()
        while part := response.read(_AT_ONCE):
            found += part
            if len(found) > self._most:
                raise _Failed(f"it has more than {self._most} bytes")
        if response.length:
            raise _Failed("it ends before its time")
        return bytes(found)


def _meant(address: Address) -> list[Address]:
    """The address or, of an address of IPv6 that stands for one of IPv4, that one."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    return [one for one in inner if one is not None] or [address]


def _fail(reason: str) -> NoReturn:
    raise _Failed(reason)


def _connect(
    scheme: str, name: str, address: str, port: int, timeout_s: float
) -> http.client.HTTPConnection:
    """A connection to an address under a name."""
    connection = http.client.HTTPConnection(name, port, timeout=timeout_s)
    connection.sock = socket.create_connection((address, port), timeout_s)
    if scheme == "https":
        context = ssl.create_default_context()
        try:
            connection.sock = context.wrap_socket(connection.sock, server_hostname=name)
        except BaseException:
            connection.sock.close()
            raise
    return connection


def _closer(connection: http.client.HTTPConnection) -> Callable[[], None]:
    """Function that ends a connection whoever reads from it."""
    sock = connection.sock

    def close() -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    return close
