"""The plan of an output folder: which input has which fragments, fixed before the first is run.

It is a file of the folder, so that a run that was stopped finds the same fragments again, and
whatever has a file of results is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packhorse.ray.fragments import Fragment, cut
from packhorse.ray.places import Folder, Found

_NAME = "_plan.json"
_VERSION = 1
_READERS = 32  # files whose ends are read at a time; each mostly waits for its storage


class Plan:
    """Input files with their sizes and fragments, in the order in which they came, and settings.

    Fragments have numbers; files that are added later have later ones.
    """

    def __init__(self, settings: Mapping[str, Any], files: list[dict[str, Any]]) -> None:
        self.settings = dict(settings)
        self._files = files

    @classmethod
    def read(cls, folder: Folder) -> Plan | None:
        """The plan of the folder, or None. Raises ValueError if the file is something else."""
        if not folder.has(_NAME):
            return None
        try:
            found = json.loads(folder.read(_NAME))
            version = found["version"]
            if version != _VERSION:
                raise ValueError(f"version {version!r}, expected {_VERSION}")
            return cls(found["settings"], found["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder.place}/{_NAME}: not a plan: {error}") from None

    def write(self, folder: Folder) -> None:
        fields = {"version": _VERSION, "settings": self.settings, "files": self._files}
        with folder.writing(_NAME) as stream:
            stream.write(json.dumps(fields, indent=1).encode())

    def check_settings(self, settings: Mapping[str, Any], folder: Folder) -> None:
        """Raises ValueError if the folder was begun with others, naming the first that differs."""
        for name in {**self.settings, **settings}:
            old, new = self.settings.get(name), settings.get(name)
            if old != new:
                raise ValueError(
                    f"{folder.place} was begun with {name} {old!r:.200}, now it is {new!r:.200}: "
                    "give another output, or the same settings"
                )

    def add(self, files: Sequence[Found], fragment_bytes: int, column: str) -> bool:
        """Adds the files that are not there yet, and says whether there were any.

        Raises ValueError for a file that has changed its size, and as `cut`.
        """
        sizes = {file["place"]: file["size"] for file in self._files}
        for file in files:
            if file.size != (size := sizes.get(file.place, file.size)):
                raise ValueError(
                    f"{file.place} has changed since it was planned: {file.size} bytes, {size} "
                    "before: give another output"
                )
        new = [file for file in files if file.place not in sizes]
        with ThreadPoolExecutor(_READERS, "packhorse-plan") as executor:
            cuts = list(executor.map(lambda file: cut(file, fragment_bytes, column), new))
        self._files += [
            {"place": file.place, "size": file.size, "fragments": found}
            for file, found in zip(new, cuts, strict=True)
        ]
        return bool(new)

    def fragments(self) -> Iterator[Fragment]:
        """All fragments of all files."""
        number = 0
        for file in self._files:
            for first, last in file["fragments"]:
                yield Fragment(number, file["place"], first, last)
                number += 1
