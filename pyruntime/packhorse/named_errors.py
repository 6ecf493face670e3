"""Errors of one of several inputs, which say which one it is."""

from __future__ import annotations


def with_message(error: Exception, message: str) -> Exception:
    """An error of the same class with another message. A UnicodeError, which takes more than a
    message, becomes a ValueError."""
    kind = ValueError if isinstance(error, UnicodeError) else type(error)
    return kind(message)


def named(error: Exception, name: str) -> Exception:
    """An error of the same class, whose message begins with `name`."""
    return with_message(error, f"{name}: {error}")
