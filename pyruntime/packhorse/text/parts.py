"""Requests cut into parts, and parts of several requests run as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from packhorse.encoder_session import EncoderSession
from packhorse.names import OutputName
from packhorse.packing import Int32Array, PackedTokens, batch_ranges
from packhorse.result import FloatArray, RunResult

Size = tuple[int, int, int]  # tokens, sequences, predictions


class Request(NamedTuple):
    """Any number of sequences that were checked, and what is wanted of them.

    ids       int32 vectors, one for each sequence
    type_ids  likewise; None where the model takes none
    outputs   as `EncoderSession.run` names them
    places    where "predictions" are wanted: of each sequence, the numbers of its tokens that they
              are of, ascending
    """

    ids: Sequence[Int32Array]
    type_ids: Sequence[Int32Array] | None
    outputs: tuple[OutputName, ...]
    places: Sequence[Int32Array] | None = None

    def ends(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Numbers of tokens, sequences and predictions that the first i sequences have together,
        for i from 0 to the number of sequences."""
        count = len(self.ids)
        tokens = [0, *accumulate(row.size for row in self.ids)]
        if self.places is None:
            return tokens, range(count + 1), [0] * (count + 1)
        return tokens, range(count + 1), [0, *accumulate(row.size for row in self.places)]

    def part(self, which: slice) -> Request:
        """A request of some of its sequences."""
        return Request(
            self.ids[which],
            None if self.type_ids is None else self.type_ids[which],
            self.outputs,
            None if self.places is None else self.places[which],
        )


class Part(NamedTuple):
    """As much of a request as one batch may hold.

    out   the rows that belong to it, to be written
    kind  only parts of one kind can be in one batch
    """

    request: Request
    size: Size
    out: Mapping[str, FloatArray]

    @property
    def kind(self) -> tuple[tuple[OutputName, ...], bool]:
        return self.request.outputs, self.request.type_ids is None


def sum_sizes(one: Size, other: Size) -> Size:
    """The size of both together."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class PartRunner:
    """Cuts requests for one session, and runs the parts. Any number of threads may use it."""

    def __init__(self, session: EncoderSession) -> None:
        self._session = session
        self.limits: Size = (session.max_tokens, session.max_sequences, session.max_predictions)
        self._shapes = session.outputs

    def fits(self, size: Size) -> bool:
        """True if one batch may hold so much."""
        return all(number <= limit for number, limit in zip(size, self.limits, strict=True))

    def numbers(self, request: Request) -> int:
        """Counts the numbers of the outputs of a request."""
        rows = [ends[-1] for ends in request.ends()]
        return sum(
            rows[self._counted(name)] * self._shapes[name].columns for name in request.outputs
        )

    def cut(self, request: Request, max_tokens: int | None = None) -> tuple[RunResult, list[Part]]:
        """(the result of the request, whose arrays are not written yet; the parts to write them)

        max_tokens  most tokens of a part that has more than one sequence; None: of a batch
        """
        if len(request.ids) == 1:
            return self._as_one_part(request)
        ends = request.ends()
        columns = {name: self._counted(name) for name in request.outputs}
        arrays = {
            name: np.empty((ends[column][-1], self._shapes[name].columns), np.float32)
            for name, column in columns.items()
        }
        most = self.limits[0] if max_tokens is None else min(max_tokens, self.limits[0])
        parts = []
        # The session refuses a sequence that exceeds a batch by itself.
        for first, last in batch_ranges(ends, (most, *self.limits[1:])):
            size = ends[0][last] - ends[0][first], last - first, ends[2][last] - ends[2][first]
            out: dict[str, FloatArray] = {
                name: array[ends[columns[name]][first] : ends[columns[name]][last]]
                for name, array in arrays.items()
            }
            parts.append(Part(request.part(slice(first, last)), size, out))
        return RunResult(arrays, np.array(ends[0], np.int32)), parts

    def _as_one_part(self, request: Request) -> tuple[RunResult, list[Part]]:
        """Cuts a request of one sequence, in fewer steps."""
        tokens = request.ids[0].size
        size = tokens, 1, 0 if request.places is None else request.places[0].size
        arrays: dict[OutputName, FloatArray] = {
            name: np.empty((size[self._counted(name)], self._shapes[name].columns), np.float32)
            for name in request.outputs
        }
        result = RunResult(arrays, np.array((0, tokens), np.int32))
        return result, [Part(request, size, dict(arrays.items()))]

    def run(self, parts: Sequence[Part]) -> None:
        """Runs parts of one kind, which fit into a batch together. Raises as
        `EncoderSession.run`."""
        if len(parts) == 1:
            self._run_alone(parts[0])
        else:
            self._run_together(parts)

    def _counted(self, name: OutputName) -> int:
        """Index of the number in a `Size` that counts the rows of an output."""
        return 2 if name == "predictions" else 0 if self._shapes[name].per_token else 1

    def _run_alone(self, part: Part) -> None:
        request = part.request
        self._session.run(
            _packed([request]),
            outputs=request.outputs,
            out=part.out,
            rows=_rows([request]),
        )

    def _run_together(self, parts: Sequence[Part]) -> None:
        requests = [part.request for part in parts]
        names, _ = parts[0].kind
        result = self._session.run(_packed(requests), outputs=names, rows=_rows(requests))
        begin = (0, 0, 0)
        for part in parts:
            end = sum_sizes(begin, part.size)
            for name in names:
                column = self._counted(name)
                part.out[name][:] = result[name][begin[column] : end[column]]
            begin = end


def _packed(requests: Sequence[Request]) -> PackedTokens[Int32Array]:
    """Packs the sequences of requests of one kind into one batch."""
    ids = list(chain.from_iterable(request.ids for request in requests))
    ends = np.array([0, *accumulate(row.size for row in ids)], np.int32)
    if requests[0].type_ids is None:
        return PackedTokens.of_checked(_joined(ids), ends, None)
    types = list(chain.from_iterable(request.type_ids or () for request in requests))
    return PackedTokens.of_checked(_joined(ids), ends, _joined(types))


def _joined(rows: Sequence[Int32Array]) -> Int32Array:
    if len(rows) == 1 and rows[0].flags.c_contiguous:
        return rows[0]
    return np.concatenate(rows) if rows else np.empty(0, np.int32)


def _rows(requests: Sequence[Request]) -> Int32Array | None:
    """Rows of the batch that have predictions; None where there are none."""
    if requests[0].places is None:
        return None
    rows, begin = [], 0
    for request in requests:
        for ids, places in zip(request.ids, request.places or (), strict=True):
            rows.append(places + begin)
            begin += ids.size
    return np.concatenate(rows).astype(np.int32)
