"""Readers of images, of which each thread that reads one takes one for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from packhorse.image.file_reader import FileReader
from packhorse.image.reading_process import ReadingProcess


class ImageReaders:
    """Readers for `count` threads.

    processor   makes patches of images
    patch_size  pixels of a side of a patch
    apart       true: in processes, which are started here; false: on the threads that ask
    """

    def __init__(self, processor: Any, patch_size: int, count: int, *, apart: bool) -> None:
        make = ReadingProcess if apart else FileReader
        self._all: list[FileReader | ReadingProcess] = []
        self._free: SimpleQueue[FileReader | ReadingProcess] = SimpleQueue()
        try:
            for _ in range(count):
                self._all.append(make(processor, patch_size))
                self._free.put(self._all[-1])
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Waits until all can read. Raises RuntimeError for a process that could not start."""
        for reader in self._all:
            if isinstance(reader, ReadingProcess):
                reader.wait()

    @contextmanager
    def one(self) -> Iterator[FileReader | ReadingProcess]:
        """A reader that nobody else has; waits while there is none."""
        reader = self._free.get()
        try:
            yield reader
        finally:
            self._free.put(reader)

    def close(self) -> None:
        """Ends the processes. Nobody reads any more."""
        for reader in self._all:
            reader.close()
