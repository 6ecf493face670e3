"""Files of images, by what people name: files, folders, patterns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")  # in any case


def find_images(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The files of images that paths name, in order.

    A file stands for itself, whatever it is called. A folder stands for the files below it whose
    names end as those of images do, in the order of their paths; hidden ones are left out, and
    links to folders are not followed. A pattern (*, ?, [...]; ** for folders of any depth) stands
    for all that it matches.

    Raises FileNotFoundError for a path that is not there; ValueError for a folder or a pattern
    without images.
    """
    return [found for path in paths for found in _images_of(os.fspath(path))]


def _images_of(path: str) -> list[str]:
    if Path(path).is_dir():
        found = sorted(_below(path))
    elif not Path(path).exists() and has_magic(path):
        matches = sorted(glob(path, recursive=True))  # noqa: PTH207  (takes any pattern)
        found = [one for one in matches if Path(one).is_file()]
    else:
        Path(path).stat()  # raises what is wrong, by the path's name
        return [path]
    if not found:
        raise ValueError(f"{path}: no images, expected files that end in {', '.join(SUFFIXES)}")
    return found


def _below(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".")]
        for name in files:
            if not name.startswith(".") and name.lower().endswith(SUFFIXES):
                yield os.path.join(root, name)  # noqa: PTH118  (many files: no object for each)
