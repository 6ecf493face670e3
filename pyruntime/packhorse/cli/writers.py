"""Files of vectors that grow row by row, so that no output need fit in memory."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from packhorse import TextModel

FORMATS = ("npy", "jsonl")


class NpyWriter:
    """A .npy file of rows like those of `like`. Valid after `__exit__`, also after an error."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self._file = path.open("wb")
        self._dtype = like.dtype.newbyteorder("<")
        self._columns, self._rows = like.shape[1], 0
        self._write_header()

    def _write_header(self) -> None:
        # NumPy leaves room in the header for the first dimension to grow in place.
        shape = (self._rows, self._columns)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        npy_format.write_array_header_1_0(self._file, header)

    def append(self, rows: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self._rows += len(rows)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()


class JsonlWriter:
    """Lines {"index": 0, "embedding": [...]}, to a file or, without a path, to stdout."""

    def __init__(self, path: Path | None) -> None:
        self._stack = ExitStack()
        self._file: IO[str] = sys.stdout
        if path is not None:
            self._file = self._stack.enter_context(path.open("w", encoding="utf-8"))
        self._rows = 0

    def append(self, rows: NDArray[Any]) -> None:
        if not np.isfinite(rows).all():
            raise ValueError("an embedding is not finite, which JSON cannot hold: use --format npy")
        for row in rows.tolist():
            values = ", ".join([f"{value:.9g}" for value in row])  # 9 digits give float32 back
            self._file.write(f'{{"index": {self._rows}, "embedding": [{values}]}}\n')
            self._rows += 1
        self._file.flush()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


Writer = NpyWriter | JsonlWriter


def check_output(path: Path | None, format: str | None) -> str:
    """The format: as given, or as the file's name says, or jsonl. Raises ValueError."""
    if format is None:
        suffix = path.suffix.removeprefix(".") if path is not None else ""
        format = suffix if suffix in FORMATS else "jsonl"
    if format not in FORMATS:
        raise ValueError(f"format {format!r} is not one of {', '.join(FORMATS)}")
    if format == "npy" and (path is None or (path.exists() and not path.is_file())):
        raise ValueError("npy needs a regular file to write to: name one with -o")
    return format


def open_writer(path: Path | None, format: str, like: NDArray[Any]) -> Writer:
    """A writer of rows like those of `like`, as a context manager; see `check_output`."""
    if format == "npy" and path is not None:
        return NpyWriter(path, like)
    return JsonlWriter(path)


def note_truncated(model: TextModel) -> None:
    """Says on stderr how many lines were cut, if any."""
    if model.num_truncated:
        print(
            f"packhorse: lines cut short at {model.max_length} tokens: {model.num_truncated}",
            file=sys.stderr,
        )
