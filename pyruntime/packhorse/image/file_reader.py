"""Files of images made packed patches in two steps, so that who asks for them can refuse an image
by what its header says."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from packhorse.image.decoding import OpenedImage, open_image
from packhorse.image.file_bytes import count_scans
from packhorse.patches import PackedPatches, packed


class Header(NamedTuple):
    """Sizes that are known before a file is decoded: its pixels, before it is turned upright, and
    how often it may go over them, as progressive JPEG files do."""

    width: int
    height: int
    scans: int

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def scanned_pixels(self) -> int:
        """Pixels of all scans together."""
        return self.pixels * self.scans


class Ahead(NamedTuple):
    """Which images may be made patches as soon as their header is known: those of at most so many
    pixels, of so many in all scans together, and that become so many patches."""

    pixels: int
    scanned_pixels: int
    patches: int


class Reader(Protocol):
    """Reads files one after the other, each by `open` and then `patches`."""

    def open(self, file: bytes, ahead: Ahead | None = None) -> Header:
        """Reads the header. Raises as `packhorse.image.decoding.open_image`.

        ahead  allows a process to make the patches before it is asked for them; None: it does not
        """
        ...

    def patches(self) -> PackedPatches:
        """The patches of the file that was opened last, one image. Raises ValueError for one that
        is broken, or becomes smaller than a patch."""
        ...


def expected_patches(settings: Any, patch_size: int, header: Header) -> int:
    """Counts the patches that an image becomes, by the settings of a processor."""
    size = settings.fixed_size or settings.resized(header.height, header.width)
    return int(size[0] // patch_size) * int(size[1] // patch_size)


class FileReader:
    """A `Reader` on the thread that asks.

    processor   makes patches of images, as `ImageProcessor`
    patch_size  pixels of a side of a patch
    """

    def __init__(self, processor: Any, patch_size: int) -> None:
        self._processor = processor
        self._patch_size = patch_size
        self._opened: OpenedImage | None = None

    def open(self, file: bytes, ahead: Ahead | None = None) -> Header:
        self._opened = None  # a file that cannot be opened leaves nothing of the one before
        opened = open_image(file)
        header = Header(*opened.size, count_scans(file))
        self._opened = opened
        return header

    def keeps(self, limits: Ahead, header: Header) -> bool:
        """True where the image of this header keeps the limits."""
        if header.pixels > limits.pixels or header.scanned_pixels > limits.scanned_pixels:
            return False
        patches = expected_patches(self._processor.settings, self._patch_size, header)
        return patches <= limits.patches

    def patches(self) -> PackedPatches:
        opened, self._opened = self._opened, None
        if opened is None:
            raise RuntimeError("no file is open")
        return packed(self._processor.patches([opened], self._patch_size), self._patch_size)
