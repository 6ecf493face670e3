"""Images cut into square tiles, beside which the whole is seen as one more: how models of the kind
of Idefics3 (Laurençon et al., arXiv 2408.12637) see pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packhorse.image.pixels import resize
from packhorse.image.settings import Backend, ImageSettings, Size

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Pixels = npt.NDArray[np.uint8]
_LARGEST = 4096  # no side becomes longer before the cut
_MOST_SIDE = 1 << 14
_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_image_splitting": True,
    "size": {"longest_edge": 4 * 364},
    "max_image_size": {"longest_edge": 364},
    "resample": 1,
}


@dataclass(frozen=True)
class TileSettings:
    """`longest`: what the longer side becomes first, or None. `tile`: the side of a tile. `split`:
    whether there are tiles beside the whole. `values`: what pixels of tiles become."""

    longest: int | None
    tile: int
    split: bool
    resample: str
    values: ImageSettings

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TileSettings:
        """Takes the fields of a preprocessor_config.json; those that are missing or null are as in
        transformers 5. Raises ValueError for what is not supported."""
        given = {name: value for name, value in config.items() if value is not None}
        fields = {**_DEFAULTS, **given}
        name = str(fields.get("image_processor_type", "")).removesuffix("Fast")
        if name.removesuffix("Pil") != "Idefics3ImageProcessor":
            raise ValueError(
                f"the image processor is {fields.get('image_processor_type')}, expected "
                "Idefics3ImageProcessor"
            )
        values = {name: given[name] for name in _VALUES if name in given}
        settings = ImageSettings.from_config(
            {
                "image_processor_type": "SiglipImageProcessor",
                **values,
                "do_resize": False,
                "resample": fields["resample"],
            }
        )
        return cls(
            longest=_longest("size", fields) if fields["do_resize"] else None,
            tile=_longest("max_image_size", fields),
            split=bool(fields["do_image_splitting"]),
            resample=settings.resample,
            values=settings,
        )

    def sizes(self, height: int, width: int) -> tuple[Size, Size]:
        """Sizes that an image becomes: first in its proportions, and then in whole tiles. Sides are
        made as transformers makes them, by way of a quotient in float64."""
        size = (height, width)
        if self.longest is not None:
            size = _scaled(size, self.longest, even=True)
            if max(size) > _LARGEST:
                size = _scaled(size, _LARGEST, even=False)
        height, width = size
        ratio = width / height
        if not self.split:
            return size, (self.tile, self.tile)
        if width >= height:
            columns = math.ceil(width / self.tile)
            rows = math.ceil(int(columns * self.tile / ratio) / self.tile)
        else:
            rows = math.ceil(height / self.tile)
            columns = math.ceil(int(rows * self.tile * ratio) / self.tile)
        return size, (max(1, rows) * self.tile, max(1, columns) * self.tile)

    def cut(
        self, image: Pixels | PillowImage, backend: Backend, threads: int
    ) -> tuple[Sequence[Pixels], Size]:
        """(tiles row by row and then the whole, rows and columns of tiles); an image of one tile
        has none beside the whole, in 0 rows and columns."""
        height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.size[::-1]
        made: Any = image
        for size in self.sizes(height, width):
            made = resize(made, size, self.resample, backend=backend, threads=threads)
        rows, columns = (side // self.tile for side in made.shape[:2])
        if rows * columns == 1:
            return [made], (0, 0)
        cells = made.reshape(rows, self.tile, columns, self.tile, 3).transpose(0, 2, 1, 3, 4)
        whole = resize(
            made, (self.tile, self.tile), self.resample, backend=backend, threads=threads
        )
        return [*cells.reshape(-1, self.tile, self.tile, 3), whole], (rows, columns)


_VALUES = ("do_rescale", "do_normalize", "rescale_factor", "image_mean", "image_std")


def _scaled(size: Size, longest: int, even: bool) -> Size:
    """The size whose longer side is `longest`; the other is made even by one more pixel."""
    height, width = size
    ratio = width / height
    shorter = int(longest / ratio) if width >= height else int(longest * ratio)
    shorter = max(1, shorter + shorter % 2 if even else shorter)
    return (shorter, longest) if width >= height else (longest, shorter)


def _longest(name: str, fields: Mapping[str, Any]) -> int:
    value = fields[name]
    side = value.get("longest_edge") if isinstance(value, Mapping) else None
    if type(side) is not int or not 0 < side <= _MOST_SIDE:
        raise ValueError(f"{name} is {value!r:.80}, expected a longest_edge over 0")
    return side
