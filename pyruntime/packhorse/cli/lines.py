"""Reads lines of text from a file or from stdin, in bounded memory."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from packhorse.cli.progress import Report, byte_progress

_CHUNK_BYTES = 1 << 16  # text held at a time: several full batches, a few seconds of work
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors write this at the start of a file
_ERRORS = ("strict", "replace", "skip")


class Lines(NamedTuple):
    """Some lines. `texts` are without line ends, and `numbers` are the numbers of their lines, from
    0 on."""

    texts: list[str]
    numbers: list[int]

    @contextmanager
    def named(self) -> Iterator[None]:
        """Turns a ValueError about texts[i] into one about its line."""
        try:
            yield
        except ValueError as error:

            def name(found: re.Match[str]) -> str:
                i = int(found[1])
                return f"line {self.numbers[i] + 1}" if i < len(self.numbers) else found[0]

            raise ValueError(re.sub(r"(?:texts|prompts)\[(\d+)\]", name, str(error))) from error


class LineReader:
    """Yields chunks of lines, and counts lines with errors."""

    def __init__(
        self, stream: BinaryIO, name: str, errors: str, report: Report, total: int | None
    ) -> None:
        self._stream, self._name, self._errors = stream, name, errors
        self._report, self._total = report, total
        self._bad: list[int] = []  # numbers of lines that are not UTF-8

    def __iter__(self) -> Iterator[Lines]:
        number = done = 0
        self._report(0, self._total)
        while chunk := self._stream.readlines(_CHUNK_BYTES):
            lines = Lines([], [])
            for raw in chunk:
                done += len(raw)
                if number == 0:
                    raw = raw.removeprefix(_BYTE_ORDER_MARK)
                try:
                    text: str | None = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    if self._errors == "strict":
                        yield lines
                        raise ValueError(
                            f"{self._name}, line {number + 1}: not UTF-8: {error.reason}; "
                            "--errors replace or --errors skip goes on after it"
                        ) from None
                    self._bad.append(number)
                    text = raw.decode("utf-8", "replace") if self._errors == "replace" else None
                if text is not None:
                    lines.texts.append(text.rstrip("\r\n"))
                    lines.numbers.append(number)
                number += 1
            yield lines
            self._report(done, self._total)

    def note(self) -> None:
        """Says on stderr how many lines had errors, if any."""
        if self._bad:
            what = "left out" if self._errors == "skip" else "with bytes replaced"
            print(
                f"packhorse: lines {what} that are not UTF-8: {len(self._bad)}, the first of them "
                f"line {self._bad[0] + 1}",
                file=sys.stderr,
            )


@contextmanager
def open_lines(file: Path, what: str, errors: str = "strict") -> Iterator[LineReader]:
    """Opens `file` ("-": stdin) for reading in chunks of lines, with a progress bar called `what`.

    An empty line is a line, too. errors: what to do with lines that are not UTF-8. "strict" raises
    ValueError at the first one, after those before it have been yielded; "replace" puts U+FFFD in
    place of wrong bytes; "skip" leaves the line out. Raises ValueError for any other value.
    """
    if errors not in _ERRORS:
        raise ValueError(f"--errors {errors!r:.80} is not one of {', '.join(_ERRORS)}")
    if str(file) == "-":
        with byte_progress(what) as report:
            yield LineReader(sys.stdin.buffer, "-", errors, report, None)
        return
    with file.open("rb") as stream, byte_progress(what) as report:
        info = os.fstat(stream.fileno())
        total = info.st_size if stat.S_ISREG(info.st_mode) else None
        yield LineReader(stream, str(file), errors, report, total)
