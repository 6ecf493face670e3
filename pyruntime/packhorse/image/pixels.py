"""Where pixels lie, for the runtime; and images resized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packhorse._native import image as native
from packhorse.image.decoding import pillow

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

# Pillow keeps larger images in several blocks of memory, of 16 MiB unless it is told otherwise.
_STRIP_BYTES = 8 << 20
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4, "RGBX": 4, "RGBa": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3}


def native_image(image: npt.NDArray[np.uint8] | PillowImage) -> native.Image:
    """The image as packhorse._native.image takes it. Nothing is copied, but for images of Pillow
    that lie in several blocks, strip by strip."""
    if isinstance(image, np.ndarray):
        height, width = image.shape[:2]
        channels = image.shape[2] if image.ndim == 3 else 1
        return [(height, np.ascontiguousarray(image))], width, channels, channels
    channels = _CHANNELS[image.mode]
    stride = 1 if channels == 1 else 4
    whole = _arrow_memory(image)
    if whole is not None:
        return [(image.height, whole)], image.width, channels, stride
    rows = max(1, _STRIP_BYTES // (image.width * stride))
    parts: list[tuple[int, Any]] = []
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        strip = image.crop((0, top, image.width, bottom))
        memory = _arrow_memory(strip)
        if memory is None:
            return [(image.height, np.asarray(image))], image.width, channels, channels
        parts.append((bottom - top, memory))
    return parts, image.width, channels, stride


def _arrow_memory(image: PillowImage) -> Any:
    """A capsule that holds the image's memory, or None if it is in several blocks, or if Pillow is
    older than 11.3."""
    try:
        return image.__arrow_c_array__()[1]
    except (AttributeError, ValueError):
        return None


def resize(
    image: npt.NDArray[np.uint8] | PillowImage,
    size: tuple[int, int],
    resample: str = "bicubic",
    *,
    backend: str = "torchvision",
    threads: int = 0,
) -> npt.NDArray[np.uint8]:
    """Returns the image at `size` (height, width): uint8 [height, width, channels].

    `image` is a uint8 array [height, width] or [height, width, channels] of 1 to 4 channels, or an
    image of Pillow with 8 bits a channel. `resample` is "nearest", "box", "bilinear", "hamming",
    "bicubic" or "lanczos".

    The bits are those of `Image.resize` of Pillow 13 (`backend="pil"`), or of torchvision's
    `resize` of a uint8 tensor on a CPU with antialias and, for "nearest", of "nearest-exact"
    (`backend="torchvision"`, which has neither "box" nor "hamming"). Each channel is resized by
    itself, as Pillow does with "RGBa", not with "RGBA".

    Raises ValueError for anything else. `threads`: 0 means one for each core.
    """
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise ValueError(
                f"the image is an array of {image.dtype} {list(image.shape)}, expected uint8 "
                "[height, width] or [height, width, channels]"
            )
    elif not isinstance(image, pillow().Image) or image.mode not in _CHANNELS:
        mode = getattr(image, "mode", type(image).__name__)
        raise ValueError(f"the image is of mode {mode}, expected one of {', '.join(_CHANNELS)}")
    return native.resize(native_image(image), size, resample, backend, threads)
