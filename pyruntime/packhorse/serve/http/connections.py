"""All connections of a server: how many there may be, and how long clients may take."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Protocol

from packhorse.serve.observability.metrics import Metrics
from packhorse.serve.settings import Settings

_MOST = 4096  # default limit, however many descriptors the process may have
_SPARE = 16  # beyond the limit: they are told so, and may ask how the server is
_OTHER_DESCRIPTORS = 64  # for files and pipes that are opened later
_LEAST = 16
_TICKS = 8  # checks in the shortest limit: how exactly limits are kept
_LONGEST_TICK_S = 5.0


class Open(Protocol):
    """A connection, as far as this module knows it."""

    def abort(self) -> None: ...

    def shutdown(self) -> None: ...


class Connections:
    """Counts the connections of a server, and decides which of them gives way where there are too
    many: an idle one, else the new one is surplus, which is answered by little more than "busy".

    receive_s     seconds from the first byte of a request to the last of its body
    write_s       seconds in which a client takes some of its answer
    keep_alive_s  seconds that a connection may be idle
    tick_s        how often a connection looks at its clock
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.receive_s = min(settings.receive_timeout_s, settings.request_timeout_s)
        self.write_s = settings.write_timeout_s
        self.keep_alive_s = settings.keep_alive_s
        shortest = min(self.receive_s, self.write_s, self.keep_alive_s)
        self.tick_s = min(_LONGEST_TICK_S, shortest / _TICKS)
        self._chosen = settings.max_connections
        self.count_descriptors()
        self._metrics = metrics
        self._open: set[Open] = set()
        self._idle: dict[Open, None] = {}  # the one that is idle for the longest time first
        self._surplus: dict[Open, None] = {}

    def count_descriptors(self) -> None:
        """Bounds connections by the descriptors that are left, unless the settings bound them: at
        first, and once models have taken theirs."""
        self.most = self._chosen or default_most()

    def add(self, one: Open) -> bool:
        """Counts a new connection. False: it is surplus."""
        self._open.add(one)
        within = True
        if len(self._open) > self.most:
            if self._idle:
                self._drop(next(iter(self._idle)), "idle")
            else:
                within = False
                self._surplus[one] = None
                self.refused("connections")
        if len(self._surplus) > _SPARE:
            self._drop(next(iter(self._surplus)), "surplus")
        return within

    def remove(self, one: Open) -> None:
        self._open.discard(one)
        self._idle.pop(one, None)
        self._surplus.pop(one, None)

    def rest(self, one: Open) -> None:
        """Notes that a connection has no request under way."""
        if one not in self._surplus:
            self._idle[one] = None

    def wake(self, one: Open) -> None:
        """A request has begun."""
        self._idle.pop(one, None)

    def refused(self, why: str) -> None:
        self._metrics.refused(why)

    def __len__(self) -> int:
        return len(self._open)

    def shutdown(self) -> None:
        """Ends those that have no request under way, and has the others end after it."""
        for one in list(self._open):
            one.shutdown()

    def abort(self) -> None:
        """Ends all of them at once."""
        for one in list(self._open):
            one.abort()

    def _drop(self, one: Open, why: str) -> None:
        self.remove(one)
        self.refused(why)
        one.abort()


def default_most() -> int:
    """Number of connections that the process has descriptors for, beside those that it uses now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    descriptors = Path("/proc/self/fd")
    now = len(list(descriptors.iterdir())) if descriptors.exists() else _OTHER_DESCRIPTORS
    return max(_LEAST, min(_MOST, soft - now - _OTHER_DESCRIPTORS - _SPARE))
