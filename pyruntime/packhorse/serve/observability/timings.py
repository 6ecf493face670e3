"""Times of a request that metrics and traces show."""

from __future__ import annotations

from typing import Protocol


class Timings(Protocol):
    """Work that a model did for a request.

    tokens                 that it ran
    queued_at, started_at  of `time.monotonic`
    """

    tokens: int
    queued_at: float
    started_at: float
    tokenize_s: float
    run_s: float

    @property
    def queue_s(self) -> float:
        """Seconds between `queued_at` and `started_at`."""
