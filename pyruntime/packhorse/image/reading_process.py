"""Files of images read in a process of its own: the interpreter lock, which threads that read wait
for, is another one there.

The process is started anew and not forked, since GPUs and threads do not survive a fork. It knows
the processor of images and nothing of the model. The bytes of a file, and then its patches, lie in
memory that both processes see; a socket carries what is said of them:

    parent: {"file": bytes}                child: {"header": [width, height, scans]}
    parent: {"patches": true}              child: {"shape": [patches, elements], "grids": [...]}

or, instead of either answer, {"error": kind, "message": text}. Decoders see bytes of strangers, so
what the child says is read as JSON, and sizes are compared with the memory that is there.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse.image.decoding import TooManyPixelsError
from packhorse.image.file_reader import FileReader, Header
from packhorse.image.processor import Patches

_KEPT_BYTES = 4 << 20  # memory for the next file; more is given back
# The child's libraries compute on one thread.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_CHILD = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({socket}, {memory})"
_ERRORS = {"pixels": TooManyPixelsError, "value": ValueError, "memory": MemoryError}


class _SharedMemory:
    """A file without a name that two processes have mapped. It never becomes shorter, so that no
    process can take memory away that the other one reads."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self.descriptor = descriptor
        self._bytes = np.empty(0, np.uint8)
        self._used = 0  # bytes that have been asked for since some were given back

    @classmethod
    def make(cls) -> _SharedMemory:
        made = os.memfd_create("packhorse-image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(made)

    def there(self, size: int) -> npt.NDArray[np.uint8]:
        """The first `size` bytes. Raises ValueError if there are fewer."""
        self._used = max(self._used, size)
        if len(self._bytes) < size:
            found = os.fstat(self.descriptor).st_size
            if found < size:
                raise ValueError(f"{size} bytes of {found}")
            self._map = mmap.mmap(self.descriptor, found)
            self._bytes = np.frombuffer(self._map, np.uint8)
        return self._bytes[:size]

    def put(self, content: npt.NDArray[np.uint8]) -> None:
        """Writes bytes from the beginning on, without the interpreter lock."""
        if os.fstat(self.descriptor).st_size < len(content):
            os.ftruncate(self.descriptor, -len(content) // mmap.PAGESIZE * -mmap.PAGESIZE)
        self.there(len(content))[:] = content

    def give_back(self) -> None:
        """Frees memory if much of it has been used. What it held is lost."""
        if self._used > _KEPT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE)
            self._used = 0

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class ReadingProcess:
    """A `FileReader` in a process of its own, for one thread at a time. A process that ends, as one
    does that the system kills for its memory, is started again for the next file."""

    def __init__(self, processor: Any, patch_size: int) -> None:
        """Starts the process, and does not wait for it."""
        self._what = pickle.dumps((processor, patch_size))
        self._start()

    def _start(self) -> None:
        with ExitStack() as undo:
            memory = undo.enter_context(closing(_SharedMemory.make()))
            ours, theirs = socket.socketpair()
            connection = undo.enter_context(Connection(ours.detach()))
            with theirs:
                handed = theirs.fileno(), memory.descriptor
                child = _CHILD.format(
                    path=sys.path, module=__name__, socket=handed[0], memory=handed[1]
                )
                process = subprocess.Popen(
                    [sys.executable, "-c", child],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
                    pass_fds=handed,
                )
            undo.pop_all()
        self._memory, self._connection, self._process = memory, connection, process
        with suppress(OSError):  # the process has ended, which the next question finds
            self._connection.send_bytes(self._what)

    def wait(self) -> None:
        """Waits until it can read. Raises RuntimeError for a process that could not start."""
        self._ask({"ready": True})

    def open(self, file: bytes) -> Header:
        """As of `FileReader`. Raises RuntimeError if the process ends meanwhile."""
        if self._process.poll() is not None:
            self.close()  # what the process has left
            self._start()
        self._memory.put(np.frombuffer(file, np.uint8))
        return Header(*self._ask({"file": len(file)})["header"])

    def patches(self) -> Patches:
        """As of `FileReader`. Raises RuntimeError if the process ends meanwhile."""
        said = self._ask({"patches": True})
        rows, elements = (int(side) for side in said["shape"])
        grids = np.array(said["grids"], np.int32).reshape(-1, 2)
        if min(rows, elements) < 0 or rows != int(grids.astype(np.int64).prod(axis=1).sum()):
            raise RuntimeError(f"a process that reads images says {said}")
        found = self._memory.there(rows * elements * 4).view(np.float32).copy()
        self._memory.give_back()
        return Patches(found.reshape(rows, elements), np.array([0, rows], np.int32), grids)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection.send_bytes(json.dumps(question).encode())
            said = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._process.kill()
            raise RuntimeError(
                f"a process that reads images has ended: {_ending(self._process.wait())}"
            ) from None
        answer: dict[str, Any] = json.loads(said)
        if "error" in answer:
            raise _ERRORS.get(answer["error"], RuntimeError)(answer["message"])
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        self._memory.close()


def _ending(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def serve(connection: int, memory: int) -> None:
    """The child: reads files until the other end of the connection is closed."""
    # A terminal and a service manager send these to all processes. The parent still answers then.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # Pillow warns of files of strangers
    parent, shared = Connection(connection), _SharedMemory(memory)
    reader = FileReader(*pickle.loads(parent.recv_bytes()))
    while True:
        try:
            question = json.loads(parent.recv_bytes())
        except (EOFError, OSError):
            return
        parent.send_bytes(json.dumps(_answer(reader, shared, question)).encode())


def _answer(reader: FileReader, shared: _SharedMemory, question: dict[str, Any]) -> dict[str, Any]:
    try:
        if "file" in question:
            return {"header": reader.open(shared.there(question["file"]).tobytes())}
        if "patches" in question:
            made = reader.patches()
            shared.put(made.features.reshape(-1).view(np.uint8))
            return {"shape": made.features.shape, "grids": made.grids.tolist()}
        return {}
    except Exception as error:
        kind = next((one for one, of in _ERRORS.items() if isinstance(error, of)), "other")
        message = f"{type(error).__name__}: {error}" if kind == "other" else str(error)
        return {"error": kind, "message": message}
