"""Files on a disk or in an object store, and folders whose files appear whole or not at all."""

from __future__ import annotations

import glob
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

_HIDDEN = (".", "_")  # readers pass over names that begin so
_STAGING = "_temporary"  # folder of unfinished files
# Filesystems where a file appears only when it is complete, and cannot be renamed.
_OBJECT_STORES = ("s3", "gcs", "abfs")


class Found(NamedTuple):
    """A file: its place as it was named, and its size in bytes."""

    place: str
    size: int


def locate(place: str) -> tuple[Any, str]:
    """The filesystem, and the path in it, of a path on this machine or of a URI (s3://, gs://,
    hdfs://, file://). Raises ValueError for a URI that pyarrow does not know."""
    if "://" not in place:
        return fs.LocalFileSystem(), str(Path(place).absolute())
    filesystem, path = fs.FileSystem.from_uri(place)
    return filesystem, path


def find_files(places: Sequence[str], suffixes: Sequence[str]) -> list[Found]:
    """Files in the order of their names: those named, those that a local pattern (*, ?) matches,
    and in folders, at any depth, those with such a suffix. Hidden ones are left out: names that
    begin with "." or "_".

    Raises FileNotFoundError for a place that has none, ValueError for a named file with another
    suffix.
    """
    found: dict[str, Found] = {}
    for place in places:
        matches = [place]
        if "://" not in place and glob.has_magic(place) and not Path(place).exists():
            start = Path(place).absolute()
            found_by_name = Path("/").glob(str(start.relative_to("/")))
            matches = [str(path) for path in found_by_name if not path.name.startswith(_HIDDEN)]
        some = [file for match in matches for file in _files_at(match, suffixes)]
        if not some:
            raise FileNotFoundError(f"{place}: no files that end in {', '.join(suffixes)}")
        found.update({file.place: file for file in some})
    return sorted(found.values())


def _files_at(place: str, suffixes: Sequence[str]) -> Iterator[Found]:
    filesystem, path = locate(place)
    info = filesystem.get_file_info(path)
    name = place if "://" in place else path
    if info.type == fs.FileType.File:
        if not path.endswith(tuple(suffixes)):
            raise ValueError(f"{place}: the name ends in none of {', '.join(suffixes)}")
        yield Found(name, info.size)
    elif info.type == fs.FileType.Directory:
        for inner in filesystem.get_file_info(fs.FileSelector(path, recursive=True)):
            below = inner.path[len(path) :].strip("/")
            hidden = any(part.startswith(_HIDDEN) for part in below.split("/"))
            if inner.type == fs.FileType.File and below.endswith(tuple(suffixes)) and not hidden:
                yield Found(f"{name.rstrip('/')}/{below}", inner.size)


class Folder:
    """A folder for results. It is made if it is not there; it can be pickled."""

    def __init__(self, place: str) -> None:
        self._filesystem, self._path = locate(place)
        # A URI names the same place on all machines; a path has to be on a disk that they share.
        self.place = place if "://" in place else self._path
        self._filesystem.create_dir(self._path, recursive=True)

    def names(self) -> set[str]:
        """The names of all files directly in it."""
        infos = self._filesystem.get_file_info(fs.FileSelector(self._path))
        return {info.base_name for info in infos if info.type == fs.FileType.File}

    def has(self, name: str) -> bool:
        info = self._filesystem.get_file_info(f"{self._path}/{name}")
        return bool(info.type == fs.FileType.File)

    def read(self, name: str) -> bytes:
        with self._filesystem.open_input_stream(f"{self._path}/{name}") as stream:
            return bytes(stream.read())

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """A binary stream whose contents are the file of this name after the block, and not before;
        a file that was there is replaced. After an exception there is nothing of it."""
        final = f"{self._path}/{name}"
        if self._filesystem.type_name in _OBJECT_STORES:
            with tempfile.TemporaryDirectory(prefix="packhorse-") as folder:
                whole = Path(folder) / "whole"
                with whole.open("wb") as stream:
                    yield stream
                fs.copy_files(str(whole), final, fs.LocalFileSystem(), self._filesystem)
            return
        partial = f"{self._staging()}/{name}.{uuid.uuid4().hex}"
        try:
            with self._filesystem.open_output_stream(partial) as stream:
                yield stream
            if self._filesystem.type_name == "local":
                _flush_to_disk(partial)
            self._filesystem.move(partial, final)
        except BaseException:
            if self._filesystem.get_file_info(partial).type == fs.FileType.File:
                self._filesystem.delete_file(partial)
            raise

    def _staging(self) -> str:
        """The folder of what is not finished, which is made where it is missing."""
        path = f"{self._path}/{_STAGING}"
        self._filesystem.create_dir(path, recursive=True)
        return path

    def partial(self, name: str) -> int:
        """Number of unfinished writers of this file: those at work, and those that were killed. 0
        in an object store."""
        if self._filesystem.type_name in _OBJECT_STORES:
            return 0
        infos = self._filesystem.get_file_info(fs.FileSelector(self._staging()))
        return sum(info.base_name.startswith(f"{name}.") for info in infos)

    def remove_partial(self) -> None:
        """Removes what writers that were killed have left. Nobody else may be writing."""
        self.remove(_STAGING)

    def remove(self, folder: str) -> None:
        """Removes a folder in this one, if it is there."""
        self._filesystem.delete_dir_contents(f"{self._path}/{folder}", missing_dir_ok=True)
        if self._filesystem.get_file_info(f"{self._path}/{folder}").type == fs.FileType.Directory:
            self._filesystem.delete_dir(f"{self._path}/{folder}")


def _flush_to_disk(path: str) -> None:
    """A name must not survive a crash of the machine without its contents."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
