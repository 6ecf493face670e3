"""Files, bytes, arrays and Pillow's images made upright RGB images, by Pillow.

Pillow decodes because its wheels bring the decoders of three formats up to date a few times a year,
and because checkpoints were trained on what it makes of files. It lets go of the interpreter lock
while it decodes.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Union, cast

import numpy as np
import numpy.typing as npt

from packhorse._native import image as native

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Pixels = npt.NDArray[np.uint8]
ImageSource = Union[
    str, "os.PathLike[str]", bytes, bytearray, memoryview, npt.NDArray[Any], "PillowImage"
]

# The most pixels of an image that is decoded: 192 MiB of RGB. A photo of a phone has 12 to 50
# million.
MAX_PIXELS = 1 << 26
_ORIENTATION = 0x0112  # the tag of Exif
# Turns that make an image upright, by its orientation.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
# Versions of Pillow that make images in memory which is lent to them. Those before 13 crash where
# such an image is read without a copy, and the function is none of Pillow's public ones, so that
# later versions must be tried before they are named here.
_LENDING = ("13",)
# Other readers of Pillow are never reached by bytes from outside.
_FORMATS = ("JPEG", "PNG", "WEBP")


class OpenedImage(NamedTuple):
    """Bytes of a file whose header was read, for `decode`, once. what: names them in messages."""

    image: PillowImage
    what: str

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), before it is turned upright."""
        return self.image.width, self.image.height


class TooManyPixelsError(ValueError):
    """An image has more pixels than are decoded."""


def pillow() -> Any:
    """The module PIL.Image."""
    try:
        import PIL.Image
    except ImportError as error:
        from packhorse_weights.extras import missing_package

        raise missing_package("image", "pillow", "an image") from error
    return PIL.Image


def decode(image: ImageSource | OpenedImage, max_pixels: int = MAX_PIXELS) -> Pixels | PillowImage:
    """Returns the image as RGB and upright: a uint8 array [height, width, 3] or a Pillow image.

    `image` is the path of a JPEG, PNG or WebP file, its bytes, what `open_image` gave for them, an
    image of Pillow (in any mode but "I" and "F"), or an array: uint8 [height, width] or [height,
    width, channels] with 1 (grey), 3 or 4 (RGB with alpha) channels, or uint16 [height, width]
    (grey).

    - Files and images of Pillow are turned as their EXIF orientation says; EXIF data that cannot be
      read say nothing.
    - Transparent images are put on white, as transformers does from version 5 on; palettes and CMYK
      are converted by Pillow.
    - Of 16 bits the upper 8 are taken; Pillow itself would clip grey ones to white.
    - Of animations the first image is taken.

    Raises TooManyPixelsError, which is a ValueError, for an image of more than `max_pixels` pixels,
    before it is decoded; ValueError for bytes that cannot be decoded to the end; OSError for a file
    that cannot be read; TypeError for anything else.
    """
    if isinstance(image, np.ndarray):
        return _of_array(image, max_pixels)
    if isinstance(image, str | os.PathLike):
        with open(image, "rb") as file:  # noqa: PTH123  (bytes paths work, too)
            what = f"the file {os.fspath(image)!r}"
            return _guarded(_opened(file, what), what, max_pixels, ours=True)
    if isinstance(image, bytes | bytearray | memoryview):
        return _of_opened(open_image(image), max_pixels)
    if isinstance(image, OpenedImage):
        return _of_opened(image, max_pixels)
    if isinstance(image, pillow().Image):
        return _guarded(image, "the image", max_pixels, ours=False)
    raise TypeError(
        f"an image is a {type(image).__name__}, expected a path, bytes, a NumPy array or an image "
        "of Pillow"
    )


def _of_array(array: npt.NDArray[Any], max_pixels: int) -> Pixels | PillowImage:
    channels = array.shape[2] if array.ndim == 3 else 1
    known = array.ndim in (2, 3) and channels in (1, 3, 4)
    wide = array.dtype == np.uint16 and array.ndim == 2
    if not known or (array.dtype != np.uint8 and not wide) or 0 in array.shape:
        raise ValueError(
            f"an image is an array of {array.dtype} {list(array.shape)}, expected uint8 [height, "
            "width] or [height, width, 1, 3 or 4], or uint16 [height, width], without empty sides"
        )
    if array.shape[0] * array.shape[1] > max_pixels:
        raise _too_large("the image", array.shape[1], array.shape[0], max_pixels)
    if wide:
        array = _upper_bytes(array)
    if channels == 4:
        return _to_rgb(pillow().fromarray(np.ascontiguousarray(array)))
    if channels == 1:
        grey = array.reshape(array.shape[0], array.shape[1], 1)
        array = np.repeat(grey, 3, axis=2)
    return cast(Pixels, np.ascontiguousarray(array))


def _upper_bytes(array: npt.NDArray[Any]) -> Pixels:
    return (array >> 8).astype(np.uint8)


def open_image(content: bytes | bytearray | memoryview) -> OpenedImage:
    """Reads the header of the bytes of a file. Raises as `decode`."""
    size = memoryview(content).nbytes
    what = f"an image of {size} bytes"
    opened: Any = _opened(io.BytesIO(content), what)
    # Bytes that are in memory go to the decoder at once, instead of in pieces, before each of which
    # it would wait for the interpreter lock.
    opened.decodermaxblock = max(size, 1)
    return OpenedImage(opened, what)


def _opened(file: Any, what: str) -> PillowImage:
    """The image of a file whose header was read."""
    module = pillow()
    try:
        return cast("PillowImage", module.open(file, formats=_FORMATS))
    except (module.DecompressionBombError, module.DecompressionBombWarning) as error:
        raise TooManyPixelsError(f"{what} has too many pixels: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # hostile headers reach every kind of exception
        raise ValueError(f"{what} is no JPEG, PNG or WebP image that can be read") from error


def _of_opened(opened: OpenedImage, max_pixels: int) -> PillowImage:
    return _guarded(opened.image, opened.what, max_pixels, ours=True)


def _lend_memory(image: PillowImage) -> None:
    """Has a file of colours decoded into an array of NumPy, which is cleared without the
    interpreter lock and, where it is large, has large pages: Pillow clears and frees memory of its
    own with the lock."""
    lends = pillow().__version__.partition(".")[0] in _LENDING
    if lends and image.mode == "RGB" and getattr(image, "tile", None):
        memory = np.zeros((image.height, image.width, 4), np.uint8)
        lent = native.lend_pixels(memory, image.height * image.width)
        image.im = pillow().core.new_arrow(image.mode, image.size, *lent)


def _guarded(image: PillowImage, what: str, max_pixels: int, *, ours: bool) -> PillowImage:
    """The image as RGB and upright, after its size was checked. ours: nobody else has it."""
    if image.width * image.height > max_pixels:
        raise _too_large(what, image.width, image.height, max_pixels)
    if image.width == 0 or image.height == 0:
        raise ValueError(f"{what} has {image.width} x {image.height} pixels, expected some")
    if image.mode in ("I", "F"):
        raise ValueError(
            f"{what} has numbers of 32 bits (mode {image.mode}), expected 8 or 16 bits a channel"
        )
    try:
        if ours:
            _lend_memory(image)
        image.load()  # before what follows, which would hide that it fails
        turn = _turn(image)
        if turn is not None:
            image = image.transpose(getattr(pillow().Transpose, turn))
        return _to_rgb(image)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{what} is broken: {error}") from error


def _turn(image: PillowImage) -> str | None:
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except MemoryError:
        raise
    except Exception:  # readers of JPEG never fail on EXIF data, others do
        return None
    return _TURNS.get(orientation) if type(orientation) is int else None


def _to_rgb(image: PillowImage) -> PillowImage:
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode.startswith("I;16"):
        return cast("PillowImage", pillow().fromarray(_upper_bytes(np.asarray(image)))).convert(
            "RGB"
        )
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = pillow().new("RGBA", image.size, (255, 255, 255, 255))
        return cast("PillowImage", pillow().alpha_composite(white, image).convert("RGB"))
    return image.convert("RGB")


def _too_large(what: str, width: int, height: int, max_pixels: int) -> ValueError:
    return TooManyPixelsError(
        f"{what} has {width} x {height} pixels, which are more than max_pixels = {max_pixels}"
    )
