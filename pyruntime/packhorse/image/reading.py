"""Any number of images made patches ahead of their use, where a broken one does not stop the
others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from packhorse.image.model import ImageModel
from packhorse.load_arguments import cores
from packhorse.patches import PackedPatches, join
from packhorse.text.streaming import prepare_ahead

CHUNK = 32  # images that are read together: 20 MB of patches at 224 x 224 pixels


class ReadImages(NamedTuple):
    """Some images.

    sources  what they were made of
    patches  those that could be read, in order; None: none could
    errors   why the others could not, by their index in `sources`
    """

    sources: list[Any]
    patches: PackedPatches | None
    errors: dict[int, Exception]


def read_images(model: ImageModel, sources: Iterable[Any]) -> Iterator[ReadImages]:
    """Yields images in chunks, in order; the next chunk is read while one is in use. An image that
    its processor refuses (OSError, ValueError) is in `errors`."""

    def one(source: Any) -> PackedPatches | Exception:
        try:
            return model.patches([source])
        except (OSError, ValueError) as error:
            return error

    with ThreadPoolExecutor(cores(), "packhorse-image") as pool:

        def prepare(some: list[Any], _first: int) -> ReadImages:
            made = list(pool.map(one, some))
            read = [found for found in made if isinstance(found, PackedPatches)]
            errors = {i: found for i, found in enumerate(made) if isinstance(found, Exception)}
            return ReadImages(some, join(read) if read else None, errors)

        for _, found in prepare_ahead(sources, CHUNK, prepare):
            yield found
