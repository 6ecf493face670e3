"""Memory that two processes see."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress

import numpy as np
import numpy.typing as npt

KEPT_BYTES = 4 << 20  # more than these are given back


class SharedMemory:
    """A file without a name that two processes have mapped. It never becomes shorter, so that no
    process can take memory away that the other one reads."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._bytes = np.empty(0, np.uint8)
        self._used = 0  # bytes that have been asked for since some were given back

    @classmethod
    def make(cls) -> SharedMemory:
        made = os.memfd_create("packhorse-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return cls(made)

    def there(self, size: int) -> npt.NDArray[np.uint8]:
        """The first `size` bytes. Raises ValueError if there are fewer."""
        if len(self._bytes) < size:
            found = os.fstat(self.descriptor).st_size
            if found < size:
                raise ValueError(f"{size} bytes of {found}")
            self._map = mmap.mmap(self.descriptor, found)
            self._bytes = np.frombuffer(self._map, np.uint8)
        self._used = max(self._used, size)
        return self._bytes[:size]

    def put(self, content: npt.NDArray[np.uint8]) -> None:
        """Writes bytes from the beginning on, without the interpreter lock."""
        if len(self._bytes) < len(content) > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, -len(content) // mmap.PAGESIZE * -mmap.PAGESIZE)
        self.there(len(content))[:] = content

    def give_back(self) -> None:
        """Frees memory if much of it has been used. What it held is lost."""
        if self._used > KEPT_BYTES and self._map is not None:
            self._used = 0
            with suppress(OSError):  # some sandboxes know no such call, and keep the memory
                self._map.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
