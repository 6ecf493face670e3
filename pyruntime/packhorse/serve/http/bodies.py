"""The memory that the bodies of all requests take at once."""

from __future__ import annotations

from packhorse.serve.errors import ServeError
from packhorse.serve.observability.metrics import Metrics


class Bodies:
    """Counts bytes of bodies that are being received or worked on. Used on the event loop alone."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._left = most
        self._metrics = metrics

    def take(self, size: int) -> None:
        """Raises ServeError ("busy") where so much more is too much."""
        if size > self._left:
            self._metrics.refused("bodies")
            raise ServeError(
                "busy", "the bodies of other requests take all memory for them", retry_after=1
            )
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size
