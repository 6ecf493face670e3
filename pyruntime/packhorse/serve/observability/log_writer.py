"""Lines of the log, written by a thread that never has anybody wait for whoever reads them."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

_MOST_LINES = 10_000  # lines that wait to be written; more are dropped
_MOST_BYTES = 4_000_000
_PIECE = 4096  # bytes that a pipe takes at once, if it takes any
_LOOK_S = 0.05  # seconds between two looks at a pipe that is full
_LAST_S = 0.5  # for what is there when the process ends


class LogWriter:
    """Writes lines to what `sys.stderr` is when it writes, and drops those that come while too
    many wait.

    dropped  how many there were
    """

    def __init__(self, tell: Callable[[int], str]) -> None:
        """Sets `tell`, which makes a line of the number of lines that were dropped before it."""
        self._tell = tell
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._untold = 0
        self.dropped = 0
        self._changed = threading.Condition()
        self._ends_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="packhorse-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Does not wait. From any thread."""
        with self._changed:
            if len(self._lines) >= _MOST_LINES or self._bytes + len(line) > _MOST_BYTES:
                self.dropped += 1
                self._untold += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify()

    def close(self) -> None:
        """Writes what is there, as far as it is taken soon."""
        with self._changed:
            self._ends_at = time.monotonic() + _LAST_S
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._untold or self._ends_at):
                    self._changed.wait()
                if self._lines:
                    line = self._lines.popleft()
                    self._bytes -= len(line)
                elif self._untold:
                    line, self._untold = self._tell(self._untold), 0
                else:
                    return
            if not self._write(f"{line}\n"):
                return

    def _write(self, text: str) -> bool:
        """False: nobody takes it, and the process ends."""
        try:
            descriptor = sys.stderr.fileno()
        except (io.UnsupportedOperation, AttributeError, ValueError):  # no file, none, closed
            if sys.stderr is not None and not sys.stderr.closed:
                sys.stderr.write(text)
            return True
        data = text.encode(errors="replace")
        while data:
            while not _takes(descriptor):
                if self._ends_at is not None and time.monotonic() >= self._ends_at:
                    return False
            try:
                data = data[os.write(descriptor, data[:_PIECE]) :]
            except BlockingIOError:
                continue
            except OSError:  # whoever read it has gone: there is nobody to tell
                return True
        return True


def _takes(descriptor: int) -> bool:
    """Waits a moment for a file or pipe to take bytes."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(_LOOK_S * 1000))
