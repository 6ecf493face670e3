"""The library's own log, of Python's `logging`: silent until a program listens to it."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from packhorse.session import Session

LOGGER = logging.getLogger("packhorse")
LOGGER.addHandler(logging.NullHandler())  # else warnings would go to stderr
Loaded = TypeVar("Loaded", bound="Session")


def note_loaded(session: Loaded, place: object, began: float) -> Loaded:
    """The session, after a line about it. began: when loading did, of `time.monotonic`."""
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info(
            "loaded %s from %s: %s on %s, %.1f MiB planned, in %.2f s",
            session.config.get("family", "a model"),
            place,
            session.dtype,
            session.device,
            session.memory_plan.total_bytes / 2**20,
            monotonic() - began,
        )
    return session
