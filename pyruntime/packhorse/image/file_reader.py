"""Files of images made packed patches in two steps, so that who asks for them can refuse an image
by what its header says."""

from __future__ import annotations

from typing import Any, NamedTuple

from packhorse.image.decoding import OpenedImage, open_image
from packhorse.image.file_bytes import count_scans


class Header(NamedTuple):
    """Sizes that are known before a file is decoded: its pixels, before it is turned upright, and
    how often it may go over them, as progressive JPEG files do."""

    width: int
    height: int
    scans: int


class FileReader:
    """Reads files one after the other, each by `open` and then `patches`.

    processor   makes patches of images, as `ImageProcessor`
    patch_size  pixels of a side of a patch
    """

    def __init__(self, processor: Any, patch_size: int) -> None:
        self._processor = processor
        self._patch_size = patch_size
        self._opened: OpenedImage | None = None

    def open(self, file: bytes) -> Header:
        """Reads the header. Raises as `packhorse.image.decoding.open_image`."""
        self._opened = open_image(file)
        return Header(*self._opened.size, count_scans(file))

    def patches(self) -> Any:
        """The patches of the file that was opened last: an object with `features` and `grids`, as
        of `PackedPatches`. Raises ValueError for a file that is broken."""
        opened, self._opened = self._opened, None
        return self._processor.patches([opened], self._patch_size)

    def close(self) -> None:
        """Has nothing to give back."""
