"""Images as requests bring them, made the bytes of a file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from packhorse.image.decoding import TooManyPixelsError
from packhorse.image.file_bytes import from_base64
from packhorse.image.file_reader import Ahead, Header, Reader
from packhorse.serve.errors import ServeError

_KINDS = ("image/jpeg", "image/jpg", "image/png", "image/webp", "application/octet-stream")
_SCHEME = "data:"
_MOST_HEADER = 256  # characters of a data URL before its data
# Pixels of all scans of a JPEG file together, each of which is decoded over all pixels: a few
# seconds. Progressive photos have about ten scans.
MOST_SCANNED = 1 << 30


class ImageInput(NamedTuple):
    """An image of a request.

    name     of its field, for messages
    content  a data URL, base64, or the bytes of a file
    """

    name: str
    content: str | bytes

    def file(self, most: int) -> bytes:
        """The bytes of the file, of which `most` are taken. Raises ServeError."""
        given = self.content
        if isinstance(given, bytes):
            self.check_bytes(len(given), most)
            return given
        begin = self._check_header(given) if given.startswith(_SCHEME) else 0
        self.check_bytes((len(given) - begin) * 3 // 4 - 2, most)
        found = from_base64(given, begin)
        if found is None:
            self.wrong(" is not base64")
        self.check_bytes(len(found), most)
        return found

    def _check_header(self, given: str) -> int:
        """Where the data begins."""
        header, comma, _ = given[:_MOST_HEADER].partition(",")
        kind, *parameters = header[len(_SCHEME) :].lower().split(";")
        if not comma or parameters[-1:] != ["base64"]:
            self.wrong(' is not a data URL in base64, "data:image/png;base64,..."')
        if kind not in _KINDS:
            self.wrong(f" is of type {kind!r:.40}, expected image/jpeg, image/png or image/webp")
        return len(header) + 1

    def check_bytes(self, size: int, most: int) -> None:
        """Raises ServeError for more bytes than are taken."""
        if size > most:
            raise ServeError(
                "too_large",
                f"{self.name} has {size} bytes, at most {most} are taken for an image",
                parameter=self.name,
            )

    def wrong(self, what: str) -> NoReturn:
        raise ServeError("validation", f"{self.name}{what}", parameter=self.name)

    def header(self, reader: Reader, file: bytes, most: int, ahead: Ahead | None = None) -> Header:
        """Opens the file with a reader. Raises ServeError for more pixels than `most`, for a file
        that takes long to decode, and for what is no image."""
        try:
            found = reader.open(file, ahead)
        except TooManyPixelsError as error:
            raise ServeError("too_large", f"{self.name}: {error}", parameter=self.name) from None
        except ValueError as error:
            self.wrong(f": {error}")
        size = f"{found.width} x {found.height} pixels"
        if found.pixels > most:
            raise ServeError(
                "too_large",
                f"{self.name} has {size}, at most {most} are taken",
                parameter=self.name,
            )
        if found.scanned_pixels > MOST_SCANNED:
            self.wrong(f" has {size} in {found.scans} scans, which takes too long")
        return found


class PixelBudget:
    """Bounds the pixels that all threads decode at a time, whose memory is many times that of the
    files."""

    def __init__(self, most: int, total: int | None = None) -> None:
        """most: pixels of one image. total: of all that are decoded at a time; None: as many."""
        self.most = most
        self._left = most if total is None else total
        self._changed = threading.Condition()

    @contextmanager
    def room(self, pixels: int) -> Iterator[None]:
        """Waits until so many may be decoded, at most `most`."""
        with self._changed:
            while pixels > self._left:
                self._changed.wait()
            self._left -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._left += pixels
                self._changed.notify_all()
