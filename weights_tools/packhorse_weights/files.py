"""Every read of a model's files goes through here, and nothing that is read is trusted.

A model may have been written by anybody. So its folder reads nothing but regular files of its own:
links are followed where they stay inside the folder, or lead from a snapshot in the cache of
Hugging Face to the files that this cache keeps for its repository. Pipes and devices, which may
have no end, are refused before they are opened. A file that the caller names may lie anywhere.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from packhorse_weights.errors import CheckpointError

MAX_JSON_BYTES = 64 << 20
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def parse_json_object(text: bytes, what: str) -> dict[str, Any]:
    """Parses one JSON object. Duplicate keys, absurd nesting and non-UTF-8 are errors."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise CheckpointError(f"{what}: the key {name!r} appears twice")
            result[name] = value
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=no_duplicates)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what}: expected a JSON object, found {type(value).__name__}")
    return value


def _homes(folder: Path) -> Iterator[Path]:
    """The folders in which the files of the model in `folder` may lie: itself, the model's whose
    module it is, and for a snapshot in the cache of Hugging Face the files of its repository.
    `folder` has no links."""
    yield folder
    if (folder.parent / "modules.json").is_file():
        yield folder.parent
    for place in (folder, *folder.parents):
        if place.parent.name == "snapshots":
            yield place.parent.parent / "blobs"


def _check_place(path: Path, folder: Path) -> None:
    """Raises CheckpointError if `path`, which may be a link, leads out of the model in `folder`."""
    real, home = (Path(os.path.realpath(one)) for one in (path, folder))  # loops are no error
    if not any(real.is_relative_to(place) for place in _homes(home)):
        raise CheckpointError(
            f"{path}: a link to {real}, outside of the model's folder; expected files inside it. "
            "Copy the file there"
        )


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise CheckpointError(f"{path}: is {kind}, expected a regular file")


def has_file(path: Path) -> bool:
    """Tells whether a model has a file. Raises CheckpointError if `path` is there and is no regular
    file, or a link out of the folder."""
    if not path.exists():
        return False
    _check_place(path, path.parent)
    _check_kind(path, path.stat().st_mode)
    return True


def files_below(folder: Path, pattern: str) -> list[Path]:
    """The files of a model whose names fit `pattern`, sorted. Raises as `has_file`."""
    found = sorted(folder.glob(pattern))
    for path in found:
        _check_place(path, folder)
    return [path for path in found if has_file(path)]


def open_file(path: Path) -> BinaryIO:
    """Opens a regular file, wherever it lies. Raises CheckpointError for a file of another kind."""
    if not path.exists():
        raise CheckpointError(f"{path}: the file is missing")
    _check_kind(path, path.stat().st_mode)
    # Opening does not wait for the other end, if it has become a pipe since.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _check_kind(path, os.fstat(file.fileno()).st_mode)
    except CheckpointError:
        file.close()
        raise
    return file


def refuse_lfs_pointer(path: Path, start: bytes | None = None) -> None:
    """Raises CheckpointError if `path` is only a placeholder for a file that Git LFS has not
    fetched. `start` is the beginning of the file; None: it is read."""
    if start is None:
        with open_file(path) as file:
            start = file.read(len(_LFS_POINTER))
    if start.startswith(_LFS_POINTER):
        raise CheckpointError(
            f"{path}: a Git LFS pointer, not the file itself. Fetch the files: "
            f"git -C {str(path.parent)!r} lfs pull (git lfs install comes before, once)"
        )


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES, *, named: bool = False) -> bytes:
    """A whole file of a model. That it is missing is an error of the model, too. `named`: the
    caller named it, so it may lie anywhere."""
    if not named:
        has_file(path)  # refuses links out of the folder
    with open_file(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise CheckpointError(f"{path}: {size} bytes, more than the {limit} expected at most")
        data = file.read(size)
    refuse_lfs_pointer(path, data)
    return data


def read_json(path: Path, *, named: bool = False) -> dict[str, Any]:
    return parse_json_object(read_bytes(path, named=named), str(path))


def optional_json(path: Path) -> dict[str, Any]:
    """The fields of a file that a folder may lack; none then."""
    return read_json(path) if has_file(path) else {}


def _is_file_name(name: object) -> bool:
    """True if it is a name that every system takes. JSON may say anything."""
    if not isinstance(name, str) or len(name) > 1024 or set(name) & set("\0\\:"):
        return False
    try:
        return all(len(part.encode()) <= 255 for part in name.split("/"))
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def child(folder: Path, name: object, what: str) -> Path:
    """Returns `folder / name`, where `name` comes from a file and must stay below the folder, also
    where it is a link (see above)."""
    if not isinstance(name, str) or not _is_file_name(name):
        raise CheckpointError(f"{what}: {name!r:.80} is not a usable file name")
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{what}: {name!r:.80} leads out of the folder")
    _check_place(folder / path, folder)
    return folder / path


class MappedFile(mmap.mmap):
    """A mapping that knows its `path`, for messages of those who read it."""

    path: Path


def map_file(path: Path) -> MappedFile:
    """Maps a whole file read-only. It stays mapped as long as a view of it is alive. Where it lies
    is for the caller to check, by `has_file`, unless the path comes from outside of the model."""
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise CheckpointError(f"{path}: the file is empty")
        buffer = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    buffer.path = path
    refuse_lfs_pointer(path, buffer[: len(_LFS_POINTER)])
    return buffer
