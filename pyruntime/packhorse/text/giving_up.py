"""Long work on texts beside other requests: it ends early when nobody waits for it any more, and no
step of it is longer than the others can wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Characters of a text that cannot be tokenized in pieces, because no two words of it part.
MOST_AT_ONCE = 524_288

_given_up: ContextVar[Callable[[], bool] | None] = ContextVar("given_up", default=None)


class GaveUpError(Exception):
    """Nobody waits for the result."""


@contextmanager
def giving_up(when: Callable[[], bool]) -> Iterator[None]:
    """Has `checkpoint` raise GaveUpError in this block, on this thread, once `when()` is true, and
    ValueError for more characters than `MOST_AT_ONCE`."""
    token = _given_up.set(when)
    try:
        yield
    finally:
        _given_up.reset(token)


def checkpoint(characters: int = 0) -> None:
    """Stands before each piece of long work, of so many characters. Raises GaveUpError, and
    ValueError for a piece that is too long; without `giving_up` nothing."""
    when = _given_up.get()
    if when is None:
        return
    if when():
        raise GaveUpError
    if characters > MOST_AT_ONCE:
        raise ValueError(
            f"{characters} characters without a place where words part, at most {MOST_AT_ONCE} are "
            "tokenized at once"
        )
