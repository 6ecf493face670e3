"""Writes files of vectors row by row, so that no output has to fit in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from packhorse import TextModel

FORMATS = ("npy", "jsonl")
_SUFFIXES = {".npy": "npy", ".jsonl": "jsonl", ".ndjson": "jsonl"}  # ends of file names -> format


class NpyWriter:
    """Writes a .npy file of rows like those of `like`. The file is valid after `__exit__`, even
    after an error."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self._file = path.open("wb")
        self._dtype = like.dtype.newbyteorder("<")
        self._columns, self._rows = like.shape[1], 0
        self._write_header()

    def _write_header(self) -> None:
        # NumPy leaves room in the header, so that the first dimension can grow in place.
        shape = (self._rows, self._columns)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        npy_format.write_array_header_1_0(self._file, header)

    def append(
        self, rows: NDArray[Any], numbers: Sequence[int], paths: Sequence[str] | None = None
    ) -> None:
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self._rows += len(rows)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()


class JsonlWriter:
    """Writes lines {"index": number, "embedding": [...]}, with "path" where there are `paths`, to a
    file or, without one, to stdout."""

    def __init__(self, path: Path | None) -> None:
        self._stack = ExitStack()
        self._file: IO[str] = sys.stdout
        if path is not None:
            self._file = self._stack.enter_context(path.open("w", encoding="utf-8"))

    def append(
        self, rows: NDArray[Any], numbers: Sequence[int], paths: Sequence[str] | None = None
    ) -> None:
        if not np.isfinite(rows).all():
            raise ValueError("an embedding is not finite, which JSON cannot hold: use --format npy")
        for i, (number, row) in enumerate(zip(numbers, rows.tolist(), strict=True)):
            values = ", ".join([f"{value:.9g}" for value in row])  # 9 digits restore a float32
            path = "" if paths is None else f'"path": {json.dumps(paths[i])}, '
            self._file.write(f'{{"index": {number}, {path}"embedding": [{values}]}}\n')
        self._file.flush()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


Writer = NpyWriter | JsonlWriter


def check_output(path: Path | None, format: str | None, errors: str, item: str = "line") -> str:
    """Returns the format: the given one, the one that the file's name implies, or else jsonl.

    Raises ValueError if the name implies another format, or if npy would be written to something
    other than a regular file or with items left out (`errors`), which only jsonl can express.
    """
    if format not in (None, *FORMATS):
        raise ValueError(f"--format {format!r:.80} is not one of {', '.join(FORMATS)}")
    suffix = path.suffix.lower() if path is not None else ""
    said = _SUFFIXES.get(suffix)
    known = "name it .npy (one array) or .jsonl (lines of JSON)"
    if suffix == ".npz":
        raise ValueError(f"{path}: .npz archives are not written: {known}")
    if said is not None and format not in (None, said):
        raise ValueError(f"{path}: the name says {said}, --format says {format}")
    if suffix and said is None and format is None and not _is_stream(path):
        raise ValueError(f"{path}: the name says no format: {known}, or give --format")
    format = format or said or "jsonl"
    if format == "npy":
        if path is None or _is_stream(path):
            raise ValueError("npy needs a regular file to write to: name one with -o")
        if errors == "skip":
            others = "use --errors replace" if item == "line" else "give --names"
            raise ValueError(
                f"--errors skip: a .npy file cannot say which {item}s were left out: write jsonl, "
                f"whose lines have numbers, or {others}"
            )
    return format


def _is_stream(path: Path | None) -> bool:
    """True if the path is an existing pipe or device."""
    return path is not None and path.exists() and not path.is_file()


def open_writer(path: Path | None, format: str, like: NDArray[Any]) -> Writer:
    """Opens a writer of rows like those of `like`, as a context manager; see `check_output`."""
    if format == "npy" and path is not None:
        return NpyWriter(path, like)
    return JsonlWriter(path)


def note_truncated(model: TextModel) -> None:
    """Says on stderr how many lines were truncated, if any."""
    if model.num_truncated:
        print(
            f"packhorse: lines cut short at {model.max_length} tokens: {model.num_truncated}",
            file=sys.stderr,
        )
