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
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from packhorse.names import OutputName
from packhorse.packing import Int32Array, as_int32, pack
from packhorse.result import FloatArray, RunResult
from packhorse.session import Session

Size = tuple[int, int, int]  # tokens, sequences, predictions


class Request(NamedTuple):
    """Any number of sequences that were checked, and what is wanted of them.

    ids       int32 vectors, one for each sequence
    type_ids  likewise; None where the model takes none
    outputs   as `Session.run` names them
    places    where "predictions" are wanted: of each sequence, the numbers of its tokens that they
              are of, ascending
    """

    ids: Sequence[Int32Array]
    type_ids: Sequence[Int32Array] | None
    outputs: tuple[OutputName, ...]
    places: Sequence[Int32Array] | None = None

    def ends(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """How many tokens, sequences and predictions the first i sequences have together, for i
        from 0 to the number of sequences."""
        count = len(self.ids)
        tokens = [0, *accumulate(row.size for row in self.ids)]
        if self.places is None:
            return tokens, range(count + 1), [0] * (count + 1)
        return tokens, range(count + 1), [0, *accumulate(row.size for row in self.places)]


def _sum(one: Size, other: Size) -> Size:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class _Part:
    """As much of a request as one batch may hold, and the thread that waits for it."""

    def __init__(
        self, request: Request, which: slice, size: Size, out: Mapping[str, FloatArray]
    ) -> None:
        """`out` has the rows that belong to the part, to be written."""
        self.ids = request.ids[which]
        self.type_ids = None if request.type_ids is None else request.type_ids[which]
        self.places = None if request.places is None else request.places[which]
        self.kind = (request.outputs, request.type_ids is None)
        self.size = size
        self.out = out
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

    def __init__(self, session: Session) -> None:
        self._session = session
        self._limits = (session.max_tokens, session.max_sequences, session.max_predictions)
        self._shapes = session.outputs
        self._reset()
        _batchers.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()  # of the two below; never held while anything is computed
        self._parts: list[_Part] = []  # of callers that lead or wait, the oldest first
        self._leader: _Part | None = None

    def __reduce__(self) -> tuple[Callable[[Session], Batcher], tuple[Session]]:
        return type(self), (self._session,)

    def __copy__(self) -> Batcher:
        return self

    def __deepcopy__(self, _memo: object) -> Batcher:
        return self

    def run(self, request: Request) -> RunResult:
        """The outputs of all its sequences, which may take several batches.

        Raises as `Session.run`. What a run raises reaches all callers that share it. What a handler
        of a signal raises, Ctrl-C above all, reaches the main thread alone; the others run again.
        """
        ends = request.ends()
        columns = {name: self._counted(name) for name in request.outputs}
        arrays = {
            name: np.empty((ends[column][-1], self._shapes[name].columns), np.float32)
            for name, column in columns.items()
        }
        for first, last in self._split(ends):
            size = ends[0][last] - ends[0][first], last - first, ends[2][last] - ends[2][first]
            out: dict[str, FloatArray] = {
                name: array[ends[columns[name]][first] : ends[columns[name]][last]]
                for name, array in arrays.items()
            }
            self._run_part(_Part(request, slice(first, last), size, out))
        return RunResult(arrays, as_int32("cu_seqlens", ends[0]))

    def _counted(self, name: OutputName) -> int:
        """Which number of a `Size` counts the rows of an output."""
        return 2 if name == "predictions" else 0 if self._shapes[name].per_token else 1

    def _fits(self, size: Size) -> bool:
        return all(number <= limit for number, limit in zip(size, self._limits, strict=True))

    def _split(self, ends: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Ranges [first, last) of sequences that each fit into a batch."""
        first, count = 0, len(ends[1]) - 1
        while first < count:
            last = min(
                bisect_right(of_kind, of_kind[first] + limit) - 1
                for of_kind, limit in zip(ends, self._limits, strict=True)
            )
            last = max(last, first + 1)  # what exceeds a batch by itself the session refuses
            yield first, last
            first = last

    def _run_part(self, part: _Part) -> None:
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
            except BaseException:  # of a signal's handler: what was begun is done again
                self._leave(part)
                raise
        if part.error is not None:
            raise part.error

    def _lead(self, part: _Part) -> None:
        with self._lock:
            together = self._choose(part)
        try:
            if len(together) == 1:
                self._run_alone(part)
            else:
                self._run_together(together)
        except Exception as error:
            # On the main thread it may be of a signal's handler: the others run again, without it.
            if not _on_main_thread():
                for other in together[1:]:
                    other.error, other.done = error, True
            raise

    def _choose(self, part: _Part) -> list[_Part]:
        """The part, and all others that a batch has room for, those that came first before."""
        chosen, size = [part], part.size
        for other in self._parts:
            total = _sum(size, other.size)
            if other is not part and other.kind == part.kind and self._fits(total):
                chosen.append(other)
                size = total
        return chosen

    def _run_alone(self, part: _Part) -> None:
        self._session.run(
            pack(part.ids, type_ids=part.type_ids),
            outputs=part.kind[0],
            out=part.out,
            rows=_rows([part]),
        )

    def _run_together(self, parts: Sequence[_Part]) -> None:
        ids = list(chain.from_iterable(part.ids for part in parts))
        types = list(chain.from_iterable(part.type_ids or () for part in parts))
        names, without_types = parts[0].kind
        result = self._session.run(
            pack(ids, type_ids=None if without_types else types), outputs=names, rows=_rows(parts)
        )
        begin = (0, 0, 0)
        for part in parts:
            end = _sum(begin, part.size)
            for name in names:
                column = self._counted(name)
                part.out[name][:] = result[name][begin[column] : end[column]]
            part.done = True
            begin = end

    def _leave(self, part: _Part) -> None:
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
    """Whether a signal's handler may run in this thread."""
    return threading.get_ident() == threading.main_thread().ident


def _rows(parts: Sequence[_Part]) -> Int32Array | None:
    """Which tokens of their batch predictions are of; None where there are to be none."""
    if parts[0].places is None:
        return None
    rows, begin = [], 0
    for part in parts:
        for ids, places in zip(part.ids, part.places or (), strict=True):
            rows.append(places + begin)
            begin += ids.size
    return np.concatenate(rows).astype(np.int32)


_batchers: weakref.WeakSet[Batcher] = weakref.WeakSet()


def _forget_callers() -> None:
    """In a forked child: the threads of its parent are not there, its session refuses to run."""
    for batcher in _batchers:
        batcher._reset()


os.register_at_fork(after_in_child=_forget_callers)
