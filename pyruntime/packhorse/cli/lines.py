"""Lines of text from a file or stdin, in bounded memory."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from packhorse.cli.progress import Report, byte_progress

_CHUNK_BYTES = 1 << 16  # text held at a time: some full batches, seconds of work at most


@contextmanager
def open_lines(file: Path, what: str) -> Iterator[Iterator[list[str]]]:
    """Chunks of the lines of `file` ("-": stdin), without their ends; progress, called `what`.

    An empty line is a line too. Raises ValueError at the first line that is not UTF-8, when those
    before it have been yielded.
    """
    if str(file) == "-":
        with byte_progress(what) as report:
            yield _chunks(sys.stdin.buffer, "-", report, None)
        return
    with file.open("rb") as stream, byte_progress(what) as report:
        info = os.fstat(stream.fileno())
        total = info.st_size if stat.S_ISREG(info.st_mode) else None
        yield _chunks(stream, str(file), report, total)


def _chunks(stream: BinaryIO, name: str, report: Report, total: int | None) -> Iterator[list[str]]:
    number = done = 0
    report(0, total)
    while chunk := stream.readlines(_CHUNK_BYTES):
        lines = []
        for raw in chunk:
            number += 1
            try:
                lines.append(raw.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                yield lines
                raise ValueError(f"{name}, line {number}: not UTF-8: {error.reason}") from None
            done += len(raw)
        yield lines
        report(done, total)
