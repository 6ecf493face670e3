"""A line on the terminal that says how far a long call has come."""

from __future__ import annotations

import sys
import time

_EVERY_S = 0.1


class ProgressBar:
    """A `progress` of `TextModel`'s methods, which writes to stderr."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = time.monotonic()
        self._shown = 0.0

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        ended = done == total
        if now - self._shown < _EVERY_S and not ended:
            return
        self._shown = now
        rate = done / max(now - self._start, 1e-9)
        of_all = "" if total is None else f" of {total:,}"
        end = "\n" if ended else ""
        print(f"\r{self._what}: {done:,}{of_all} ({rate:,.0f}/s) ", end=end, file=sys.stderr)
