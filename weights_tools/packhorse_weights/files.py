"""Small helpers for files, which trust nothing that they read."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

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


def refuse_lfs_pointer(path: Path, start: bytes | None = None) -> None:
    """Raises CheckpointError if `path` is only a placeholder for a file that Git LFS has not
    fetched. `start` is the beginning of the file; None: it is read."""
    if start is None:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
    if start.startswith(_LFS_POINTER):
        raise CheckpointError(
            f"{path}: a Git LFS pointer, not the file itself. Fetch the files: "
            f"git -C {str(path.parent)!r} lfs pull (git lfs install comes before, once)"
        )


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """A whole file of a model. That it is missing is an error of the model, too."""
    if not path.is_file():
        raise CheckpointError(f"{path}: the file is missing")
    if (size := path.stat().st_size) > limit:
        raise CheckpointError(f"{path}: {size} bytes, more than the {limit} expected at most")
    data = path.read_bytes()
    refuse_lfs_pointer(path, data)
    return data


def read_json(path: Path) -> dict[str, Any]:
    return parse_json_object(read_bytes(path), str(path))


def optional_json(path: Path) -> dict[str, Any]:
    """The fields of a file that a folder may lack; none then."""
    return read_json(path) if path.is_file() else {}


def _is_file_name(name: object) -> bool:
    """Whether it is a name that every system takes. JSON may say anything."""
    if not isinstance(name, str) or len(name) > 1024 or set(name) & set("\0\\:"):
        return False
    try:
        return all(len(part.encode()) <= 255 for part in name.split("/"))
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def child(folder: Path, name: object, what: str) -> Path:
    """Returns `folder / name`, where `name` comes from a file and must stay below the folder.

    Links are followed, because download caches consist of them.
    """
    if not isinstance(name, str) or not _is_file_name(name):
        raise CheckpointError(f"{what}: {name!r:.80} is not a usable file name")
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{what}: {name!r:.80} leads out of the folder")
    return folder / path


def map_file(path: Path) -> mmap.mmap:
    """Maps a whole file read-only. It stays mapped as long as a view of it is alive."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path}: the file is empty")
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    refuse_lfs_pointer(path, buffer[: len(_LFS_POINTER)])
    return buffer
