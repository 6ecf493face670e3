"""Files of images read in a process of its own: the interpreter lock, which threads that read wait
for, is another one there.

The process is started anew and not forked, since GPUs and threads do not survive a fork. The bytes
of a file, and then its patches, lie in memory that both processes see; a socket carries what is
said of them, JSON that keeps its bounds:

    parent: {"file": bytes, "ahead": null}     child: {"header": [width, height, scans]}
    parent: {"patches": true}                  child: {"grid": [rows, columns]}
    parent: {"ready": true}                    child: {}

or, instead of an answer, {"error": kind, "message": text}. Where "ahead" has the limits of `Ahead`
and the image keeps them, the answer to "patches" comes with that to "file", under "patches": each
question costs the parent two waits for its lock.

Decoders see bytes of strangers, so nothing that the child says is believed: a process that answers
with anything else, or not in time, is ended.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from packhorse.image.decoding import TooManyPixelsError
from packhorse.image.file_reader import Ahead, FileReader, Header
from packhorse.image.shared_memory import SharedMemory
from packhorse.logs import LOGGER
from packhorse.patches import PackedPatches

_MOST_SAID = 1 << 16  # bytes of an answer, of a message or of the child's settings
_LONGEST_S = 60.0  # time of reading a file, which takes a few seconds at most
_LOOK_S = 10.0  # time between two looks of an idle child for its parent
# Priority below that of the server's own threads: on busy cores what feeds the model goes first.
_NICE = 5
_CHILD = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({socket}, {memory})"
# The child's libraries compute on one thread.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# A terminal and a service manager send these to all processes of a server, which still answers.
_FOR_THE_SERVER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ERRORS = {"pixels": TooManyPixelsError, "value": ValueError, "memory": MemoryError}
Found = TypeVar("Found")


class ReadingProcess:
    """A `Reader` in a process of its own, for one thread at a time. A process that ends, as one
    does that the system kills for its memory, is started again for the next file."""

    def __init__(self, processor: Any, patch_size: int) -> None:
        """Starts the process, and does not wait for it."""
        self._what = pickle.dumps((processor, patch_size))
        self._elements = 3 * patch_size**2
        self._ahead: Any = None  # the answer to `patches` that has come already
        self._start()

    def _start(self) -> None:
        with ExitStack() as undo:
            memory = undo.enter_context(closing(SharedMemory.make()))
            # Packets, so that a question has one answer, however long it says that it is.
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(ours)
            # The system counts the time: Python's own timeouts let go of the interpreter lock, and
            # wait for it, twice for each call instead of once.
            seconds, rest = divmod(_LONGEST_S, 1)
            longest = struct.pack("ll", int(seconds), int(1e6 * rest))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, longest)
            with theirs, _blocked(_FOR_THE_SERVER):
                handed = theirs.fileno(), memory.descriptor
                path = [one for one in sys.path if isinstance(one, str)]
                child = _CHILD.format(
                    path=path, module=__name__, socket=handed[0], memory=handed[1]
                )
                process = subprocess.Popen(
                    [sys.executable, "-c", child],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
                    pass_fds=handed,
                )
            undo.pop_all()
        self._memory, self._socket, self._process = memory, ours, process
        with suppress(OSError):  # the process has ended, which the next question finds
            self._socket.send(self._what)

    def wait(self) -> None:
        """Waits until it can read. Raises RuntimeError for a process that could not start."""
        self._ask({"ready": True}, lambda _: None)

    def open(self, file: bytes, ahead: Ahead | None = None) -> Header:
        """As of `Reader`. Raises RuntimeError if the process ends meanwhile."""
        if self._process.poll() is not None:
            LOGGER.warning("a process that reads images is started again: %s", self._end())
            self.close()  # what the process has left
            self._start()
        self._ahead = None
        self._memory.put(np.frombuffer(file, np.uint8))
        question = {"file": len(file), "ahead": ahead}
        try:
            header, self._ahead = self._ask(question, _opened)
        finally:
            if self._ahead is None:
                self._memory.give_back()
        return header

    def patches(self) -> PackedPatches:
        """As of `Reader`. Raises RuntimeError if the process ends meanwhile."""

        def taken(said: dict[str, Any]) -> PackedPatches:
            rows, columns = _sizes(said["grid"], 2)
            shape = rows * columns, self._elements
            content = self._memory.there(shape[0] * shape[1] * 4).view(np.float32)
            return PackedPatches(content.reshape(shape).copy(), [(rows, columns)])

        ahead, self._ahead = self._ahead, None
        try:
            if ahead is not None:
                return self._take(lambda: ahead, taken)
            return self._ask({"patches": True}, taken)
        finally:
            self._memory.give_back()

    def _ask(self, question: dict[str, Any], read: Callable[[dict[str, Any]], Found]) -> Found:
        """Asks, and gives what `read` makes of the answer."""
        return self._take(partial(self._exchange, question), read)

    def _exchange(self, question: dict[str, Any]) -> Any:
        self._socket.send(json.dumps(question).encode())
        said = self._socket.recv(_MOST_SAID)
        if not said:
            raise EOFError
        return json.loads(said)

    def _take(self, get: Callable[[], Any], read: Callable[[dict[str, Any]], Found]) -> Found:
        """Gives what `read` makes of an answer. A process whose answer it cannot take is ended, so
        that no answer is taken for that to another question."""
        error: Exception
        try:
            answer = get()
            if "error" not in answer:
                return read(answer)
            kind, message = answer["error"], str(answer["message"])
            error = _ERRORS[kind](message) if kind in _ERRORS else RuntimeError(message)
        except (EOFError, ConnectionError):
            ending = self._end()
            raise RuntimeError(f"a process that reads images has ended: {ending}") from None
        except BlockingIOError:
            self._end()
            raise RuntimeError(
                f"a process that reads images gave no answer in {_LONGEST_S:.0f} s"
            ) from None
        except Exception as wrong:
            self._end()
            raise RuntimeError("a process that reads images gave a wrong answer") from wrong
        except BaseException:
            self._end()
            raise
        raise error

    def _end(self) -> str:
        """Ends the process unless it has ended; says how it did."""
        self._process.kill()
        code = self._process.wait()
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def close(self) -> None:
        """Ends the process."""
        self._socket.close()
        self._end()
        self._memory.close()


def _opened(said: dict[str, Any]) -> tuple[Header, Any]:
    """(the header, the answer to `patches` if it came with it)."""
    return Header(*_sizes(said["header"], 3)), said.get("patches")


def _sizes(said: Any, count: int) -> list[int]:
    """So many sizes. Raises ValueError for anything else."""
    if not isinstance(said, list) or len(said) != count:
        raise ValueError(f"{said!r:.80}")
    if any(type(one) is not int or not 0 <= one < 1 << 31 for one in said):
        raise ValueError(f"{said!r:.80}")
    return said


@contextmanager
def _blocked(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Processes that are started here have these signals blocked for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(connection: int, memory: int) -> None:
    """The child: reads files until its parent ends, or closes the other end of the connection."""
    # Where memory lacks, this process is ended before the server is.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(_NICE)
    warnings.simplefilter("ignore")  # Pillow warns of files of strangers
    of, parent, shared = os.getppid(), socket.socket(fileno=connection), SharedMemory(memory)
    parent.settimeout(_LOOK_S)
    reader: FileReader | None = None
    while os.getppid() == of:
        try:
            said = parent.recv(_MOST_SAID)
            if not said:
                return
            if reader is None:
                reader = FileReader(*pickle.loads(said))
            else:
                parent.send(json.dumps(_answer(reader, shared, json.loads(said))).encode())
        except TimeoutError:  # a fork of the parent may keep the connection open
            pass
        except ConnectionError:
            return


def _answer(reader: FileReader, shared: SharedMemory, question: dict[str, Any]) -> dict[str, Any]:
    try:
        if "file" in question:
            header = reader.open(shared.there(question["file"]).tobytes())
            limits = question["ahead"]
            if limits is None or not reader.keeps(Ahead(*limits), header):
                return {"header": header}
            return {"header": header, "patches": _answer(reader, shared, {"patches": True})}
        if "patches" in question:
            made = reader.patches()
            shared.put(made.features.reshape(-1).view(np.uint8))
            return {"grid": made.grids[0].tolist()}
        return {}
    except Exception as error:
        kind = next((one for one, of in _ERRORS.items() if isinstance(error, of)), "other")
        message = f"{type(error).__name__}: {error}" if kind == "other" else str(error)
        return {"error": kind, "message": message[:1000]}
