"""Readers of images, of which each thread that reads one takes one for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import LifoQueue
from typing import Any

from packhorse.image.file_reader import FileReader, Reader
from packhorse.image.reading_process import ReadingProcess


class ImageReaders:
    """Readers for `count` threads.

    processor   makes patches of images
    patch_size  pixels of a side of a patch
    apart       true: in processes, which are started here; false: on the threads that ask
    """

    def __init__(self, processor: Any, patch_size: int, count: int, *, apart: bool) -> None:
        # The last one that was used comes first, so that under little load few need memory.
        self._free: LifoQueue[Reader] = LifoQueue()
        self._processes: list[ReadingProcess] = []
        try:
            for _ in range(count):
                if apart:
                    self._processes.append(ReadingProcess(processor, patch_size))
                self._free.put(self._processes[-1] if apart else FileReader(processor, patch_size))
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Waits until all can read. Raises RuntimeError for a process that could not start."""
        for process in self._processes:
            process.wait()

    @contextmanager
    def one(self) -> Iterator[Reader]:
        """A reader that nobody else has; waits while there is none."""
        reader = self._free.get()
        try:
            yield reader
        finally:
            self._free.put(reader)

    def close(self) -> None:
        """Ends the processes. Nobody reads any more."""
        for process in self._processes:
            process.close()
