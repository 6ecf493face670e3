"""Bytes of image files, read while other threads of Python run: a service does this for each image,
and what holds the interpreter lock is the limit of all its threads together."""

from __future__ import annotations

from packhorse._native import image as native


def from_base64(text: str, begin: int = 0) -> bytes | None:
    """The bytes that text[begin:] stands for; None where it is not base64, with its padding."""
    return native.decode_base64(text, begin) if text.isascii() else None


def count_scans(file: bytes) -> int:
    """Counts FF DA, which begins each scan of a JPEG file: so it has at most as many. Says nothing
    about other files."""
    return native.count_scans(file)
