"""One session for many callers: requests that wait for it share its next batch.

Flat combining (Hendler et al., "Flat combining and the synchronization-parallelism tradeoff",
2010): no thread beside the callers, one of whom leads at a time. The leader runs its own sequences
and those of all waiting callers that fit into the same batch, gives each of them its rows, and then
leaves the lead to the caller that has waited longest.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from packhorse.encoder_session import EncoderSession
from packhorse.result import RunResult
from packhorse.text.parts import Part, PartRunner, Request, sum_sizes


class _Waiting:
    """A part, and the thread that waits for it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.thread = threading.get_ident()
        self.done = False
        self.error: BaseException | None = None
        self._wake = threading.Lock()
        self._wake.acquire()

    def wait(self) -> None:
        """Sleeps until another thread calls `wake`, or has called it since the last time."""
        self._wake.acquire()

    def wake(self) -> None:
        """Called by one thread at a time."""
        if self._wake.locked():
            self._wake.release()


class Batcher:
    """Runs requests of any number of threads on one session, several of them in one batch.

    A request is run as it would be by `Session.run_many`: rows keep their order, and have the same
    bits whoever shares the batch. A copy is the batcher itself.
    """

    def __init__(self, session: EncoderSession) -> None:
        self._session = session
        self._runner = PartRunner(session)
        self._reset()
        _batchers.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()  # for the two below; never held while anything is computed
        self._parts: list[_Waiting] = []  # parts of callers that lead or wait, the oldest first
        self._leader: _Waiting | None = None

    def __reduce__(self) -> tuple[Callable[[EncoderSession], Batcher], tuple[EncoderSession]]:
        return type(self), (self._session,)

    def __copy__(self) -> Batcher:
        return self

    def __deepcopy__(self, _memo: object) -> Batcher:
        return self

    def run(self, request: Request) -> RunResult:
        """The outputs of all its sequences, which may take several batches.

        Raises as `EncoderSession.run`. What a run raises reaches all callers that share it. What a
        handler of a signal raises, Ctrl-C above all, reaches the main thread alone; the others run
        again.
        """
        result, parts = self._runner.cut(request)
        for part in parts:
            self._run_part(_Waiting(part))
        return result

    def _run_part(self, part: _Waiting) -> None:
        if _on_main_thread() and any(other.thread == part.thread for other in self._parts):
            raise RuntimeError("a signal handler ran the session that it interrupts")
        # A signal's handler may raise between any two steps of the main thread. Therefore a part
        # stays among `_parts` until it is done or given up, whoever runs it.
        try:
            with self._lock:
                self._parts.append(part)
                if self._leader is None:
                    self._leader = part
            while not (part.done or self._leader is part):
                part.wait()
            if not part.done:
                self._lead(part)
        finally:
            try:
                self._leave(part)
            except BaseException:  # a signal's handler has raised: what was begun is done again
                self._leave(part)
                raise
        if part.error is not None:
            raise part.error

    def _lead(self, part: _Waiting) -> None:
        with self._lock:
            together = self._choose(part)
        try:
            self._runner.run([one.part for one in together])
            for other in together[1:]:
                other.done = True
        except Exception as error:
            # A signal's handler may have raised it on the main thread: the others run again,
            # without it.
            if not _on_main_thread():
                for other in together[1:]:
                    other.error, other.done = error, True
            raise

    def _choose(self, waiting: _Waiting) -> list[_Waiting]:
        """The part, and all others that a batch has room for, those that came first before."""
        chosen, size = [waiting], waiting.part.size
        for other in self._parts:
            total = sum_sizes(size, other.part.size)
            same = other.part.kind == waiting.part.kind
            if other is not waiting and same and self._runner.fits(total):
                chosen.append(other)
                size = total
        return chosen

    def _leave(self, part: _Waiting) -> None:
        """Whoever has been served wakes up, and if the part leads, the next one does. Harmless when
        it is called again, or was interrupted before."""
        with self._lock:
            part.done = True
            parts = self._parts
            waiting = [other for other in parts if not other.done]
            if self._leader is part:
                self._leader = waiting[0] if waiting else None
            for other in parts:
                if other.done or other is self._leader:
                    other.wake()
            self._parts = waiting


def _on_main_thread() -> bool:
    """True if a signal's handler may run in this thread."""
    return threading.get_ident() == threading.main_thread().ident


_batchers: weakref.WeakSet[Batcher] = weakref.WeakSet()


def _forget_callers() -> None:
    """Empties batchers in a forked child: the threads of its parent are not there, its session
    refuses to run."""
    for batcher in _batchers:
        batcher._reset()


os.register_at_fork(after_in_child=_forget_callers)
