"""Images made pixel values or packed patches, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from packhorse._native import image as native
from packhorse.image.decoding import MAX_PIXELS, ImageSource, decode
from packhorse.image.pixels import native_image
from packhorse.image.settings import Backend, ImageSettings, PatchLimit, Size
from packhorse.load_arguments import cores
from packhorse.named_errors import named
from packhorse.number_checks import is_int

FloatArray = npt.NDArray[np.float32]
Result = TypeVar("Result")

# Pixels of an image from which on several threads resize it. Smaller ones take less time than
# threads need to begin, and loops of several threads take turns.
_SHARED_PIXELS = 1 << 22


@dataclass(frozen=True)
class Patches:
    """Packed patches of images of any sizes.

    `features`: float32 [T, 3 * patch height * patch width], the patches of the first image row by
    row, then those of the second; in each, channels, then rows, then columns, as a Conv2d with the
    patch as its kernel and its stride has its weights. `cu_seqlens`: int32 [B + 1], where images
    begin. `grids`: int32 [B, 2], patches of an image in a column and in a row.
    """

    features: FloatArray
    cu_seqlens: npt.NDArray[np.int32]
    grids: npt.NDArray[np.int32]


class ImageProcessor:
    """Decodes, turns upright, resizes, crops and normalises images, as the settings say.

    `backend` chooses the bits: "torchvision" is what transformers 5 does unless it is told
    otherwise, whatever the checkpoint was saved with; "pil" is its other backend, and what
    transformers 4 called slow processors. They differ by up to a few steps of 255 in resized
    images.

    `threads`: images are spread over as many threads, and a single large image over as many, too; 0
    means one for each core. `max_pixels`: larger images are refused before they are decoded.

    An object holds no resources, and any number of threads may use it.
    """

    def __init__(
        self,
        settings: ImageSettings,
        *,
        backend: Backend = "torchvision",
        threads: int = 0,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if backend not in ("torchvision", "pil"):
            raise ValueError(f"backend is {backend!r}, expected 'torchvision' or 'pil'")
        for name, number, least in (("threads", threads, 0), ("max_pixels", max_pixels, 1)):
            if not is_int(number) or number < least:
                raise ValueError(
                    f"{name} is {number!r:.80}, expected a whole number from {least} on"
                )
        if backend == "torchvision" and settings.resample in ("box", "hamming"):
            raise ValueError(f"torchvision has no filter {settings.resample}: backend='pil' has")
        self.settings = settings
        self.backend = backend
        self.threads = threads
        self.max_pixels = max_pixels
        self._values = settings.values(backend)

    @classmethod
    def from_folder(cls, folder: str | Path, **options: Any) -> ImageProcessor:
        """A processor as the preprocessor_config.json of a folder says: those of ViT, DeiT, BEiT,
        DINOv2, CLIP, SigLIP and SigLIP 2. `options` are those of the class."""
        return cls(ImageSettings.from_folder(folder), **options)

    def __call__(self, images: Sequence[ImageSource] | ImageSource) -> FloatArray:
        """Returns float32 [B, 3, height, width]; [1, 3, ...] for a single image. `decode` says what
        an image may be. Raises ValueError if results have different sizes, which `patches`
        packs."""
        sources = _as_list(images)
        size = self.settings.fixed_size
        if size is not None:
            out = np.empty((len(sources), 3, *size), np.float32)
            self._each(
                sources,
                lambda index, source, threads: self._make(source, (0, 0), threads, out[index]),
            )
            return out
        made = self._each(sources, lambda _, source, threads: self._make(source, (0, 0), threads))
        if len({array.shape for array in made}) > 1:
            found = " and ".join(sorted({f"{x.shape[1]} x {x.shape[2]}" for x in made})[:2])
            raise ValueError(
                f"images become {found} pixels, which do not fit one array: use patches()"
            )
        return np.stack(made) if made else np.empty((0, 3, 0, 0), np.float32)

    def patches(
        self, images: Sequence[ImageSource] | ImageSource, patch_size: int | Size
    ) -> Patches:
        """Returns the packed patches of images, whose sizes may differ. Rows and columns of pixels
        that fill no patch are left out, at the bottom and the right, as by a Conv2d."""
        patch: Any = (patch_size, patch_size) if is_int(patch_size) else patch_size
        sides = isinstance(patch, Sequence) and len(patch) == 2 and all(map(is_int, patch))
        if not sides or min(patch) < 1:
            raise ValueError(
                f"patch_size is {patch_size!r:.80}, expected one or two whole numbers over 0"
            )
        limit = self.settings.resize
        if isinstance(limit, PatchLimit) and patch != (limit.patch_size, limit.patch_size):
            raise ValueError(
                f"patch_size is {patch_size}, but images are resized to patches of "
                f"{limit.patch_size} x {limit.patch_size} pixels"
            )
        sources = _as_list(images)
        made = self._each(sources, lambda _, source, threads: self._make(source, patch, threads))
        grids = [array.shape[:2] for array in made]
        columns = 3 * patch[0] * patch[1]
        rows = [array.reshape(-1, columns) for array in made]
        ends = accumulate(map(len, rows), initial=0)
        return Patches(
            _together(rows, columns),
            np.array(list(ends), np.int32),
            np.array(grids, np.int32).reshape(-1, 2),
        )

    def _make(
        self, source: ImageSource, patch: Size, threads: int, out: FloatArray | None = None
    ) -> FloatArray:
        """One image: [3, height, width], or of patches [rows, columns, 3 * height * width]."""
        image = native_image(decode(source, self.max_pixels))
        height = sum(rows for rows, _ in image[0])
        if height * image[1] < _SHARED_PIXELS:
            threads = 1
        resized = self.settings.resized(height, image[1])
        frame, corner = self._frame(resized)
        padded = self.settings.pad or frame
        if padded[0] < frame[0] or padded[1] < frame[1]:
            raise ValueError(
                f"an image becomes {frame[0]} x {frame[1]} pixels, more than the {padded[0]} x "
                f"{padded[1]} that images are padded to"
            )
        shape: tuple[int, ...] = (3, *padded)
        if patch != (0, 0):
            grid = (padded[0] // patch[0], padded[1] // patch[1])
            shape = (*grid, 3 * patch[0] * patch[1])
            padded = (grid[0] * patch[0], grid[1] * patch[1])
            frame = (min(frame[0], padded[0]), min(frame[1], padded[1]))
        if out is None:
            out = np.empty(shape, np.float32)
        if out.size > 0:
            plan = (image, resized, corner, frame, padded)
            native.make_features(
                [plan], self._values, patch, self.settings.resample, self.backend, out, 0, threads
            )
        return out

    def _frame(self, resized: Size) -> tuple[Size, Size]:
        """The size of what is cut out, and where it begins: before 0 where black is added."""
        if self.settings.crop is None:
            return resized, (0, 0)
        height, width = self.settings.crop
        return (height, width), (self._begin(resized[0], height), self._begin(resized[1], width))

    def _begin(self, resized: int, crop: int) -> int:
        """Where a centre begins; of an odd number of black rows, the backends add one more at
        different ends."""
        if crop <= resized:
            return (resized - crop) // 2
        missing = crop - resized
        return -(missing // 2 if self.backend == "torchvision" else (missing + 1) // 2)

    def _each(
        self, sources: Sequence[ImageSource], make: Callable[[int, ImageSource, int], Result]
    ) -> list[Result]:
        """make(index, image, threads) of all images, side by side."""
        threads = self.threads or cores()
        if len(sources) == 1:
            return [make(0, sources[0], threads)]

        def one(index: int) -> Result:
            try:
                return make(index, sources[index], 1)
            except (ValueError, TypeError) as error:
                raise named(error, f"image {index}") from error

        if threads == 1:
            return [one(index) for index in range(len(sources))]
        with ThreadPoolExecutor(min(threads, len(sources) or 1)) as pool:
            waiting = [pool.submit(one, index) for index in range(len(sources))]
            try:
                return [future.result() for future in waiting]
            finally:
                for future in waiting:
                    future.cancel()


def _together(rows: list[FloatArray], columns: int) -> FloatArray:
    """All rows in one array [T, columns]; those of one image are not copied."""
    if len(rows) == 1:
        return rows[0]
    return np.concatenate(rows) if rows else np.empty((0, columns), np.float32)


def _as_list(images: Sequence[ImageSource] | ImageSource) -> list[ImageSource]:
    return list(images) if isinstance(images, list | tuple) else [images]  # type: ignore[list-item]
