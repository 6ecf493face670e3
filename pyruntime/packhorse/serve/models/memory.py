"""Memory that large requests have left behind, given back to the system.

The allocator of the C library keeps what was freed for later, for each thread: after some large
requests, and tokenizing takes many times the memory of a text, that would be most of the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from concurrent.futures import Executor
from contextlib import suppress

_PAUSE_S = 5.0  # between two times
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # from malloc.h of glibc
_ARENAS = 2
_KEPT = 1 << 30  # bytes at the end of an arena that stay there until `give_back`
_LARGE = 32 << 20  # bytes that the system is asked for each time: the most that glibc allows
_PILLOW_BLOCK = "PILLOW_BLOCK_SIZE"  # a variable that Pillow reads when it is imported


class Tidying:
    """Has it given back some seconds after a large request. On the event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """A large request has come."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_PAUSE_S, self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        loop.run_in_executor(self._executor, give_back)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def share_arenas() -> None:
    """Has all threads allocate from a few arenas, rather than each from its own, in which gaps stay
    that no other thread can use. To be called before there are threads."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def keep_freed() -> None:
    """Has what was freed stay for the next requests until `give_back`: otherwise each body and
    each image would be given back and its pages made anew."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def keep_images_whole() -> None:
    """Has Pillow keep a large image in one block of memory, unless the environment says otherwise:
    of several blocks a copy is made before it is resized. To be called before Pillow is
    imported."""
    os.environ.setdefault(_PILLOW_BLOCK, "1024m")


def give_back() -> None:
    """Gives freed memory back to the system, if the C library is glibc; others have no such
    function."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
