"""Packed batches: one array holds the tokens of all sequences, another the offset at which each
sequence begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

import numpy as np
import numpy.typing as npt

from packhorse.device import ForeignArray, is_device_array, shape_of

Int32Array = npt.NDArray[np.int32]
TokenSequence = Sequence[int] | npt.NDArray[np.integer[Any]]

if TYPE_CHECKING:  # only type checkers need the default, which typing has since Python 3.13
    from typing_extensions import TypeVar

    IdArray = TypeVar("IdArray", default=Int32Array)
else:
    from typing import TypeVar

    IdArray = TypeVar("IdArray")

Foreign = TypeVar("Foreign", bound=ForeignArray)

_INT32 = np.iinfo(np.int32)


def as_int32(name: str, values: Any) -> Int32Array:
    """Returns `values` as an aligned, C-contiguous int32 vector, copied only if it is not one
    already.

    Raises ValueError if it does not have one dimension, does not hold integers, or holds integers
    beyond int32.
    """
    if is_device_array(values):
        raise ValueError(
            f"{name} lies on a device, expected host memory: a batch on a device is "
            "PackedTokens(ids, cu_seqlens) with all its arrays there"
        )
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, expected one dimension")
    if array.size == 0:
        return np.empty(0, np.int32)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} has dtype {array.dtype}, expected integers")
    if array.dtype != np.int32 and (array.min() < _INT32.min or array.max() > _INT32.max):
        raise ValueError(f"{name} ranges from {array.min()} to {array.max()}, expected int32")
    array = np.ascontiguousarray(array, dtype=np.int32)
    return array if array.flags.aligned else array.copy()


def own_int32(name: str, values: Any) -> Int32Array:
    """Returns `as_int32` of `values` as an array of its own: what is checked in it stays as it is,
    even where another thread writes to the caller's array meanwhile."""
    return np.array(as_int32(name, values))


class PackedTokens(Generic[IdArray]):
    """One batch without padding, with `T` tokens in `B` sequences:

    ids           int32[T]    token ids, sequence after sequence
    cu_seqlens    int32[B+1]  prefix sum of the lengths: first 0, last T
    type_ids      int32[T] or None (all 0)
    position_ids  int32[T] or None (0, 1, ... from each sequence's own start)

    Integer arrays of other dtypes are converted. A session checks the contents when it runs them.

    All four may also be contiguous int32 arrays on a CUDA device that have `__dlpack__` or
    `__cuda_array_interface__`, or Buffers of cuda.core, whose bytes are read as int32. They stay
    where they are, unchanged. To type checkers,
    `PackedTokens` is a batch in host memory, `PackedTokens[torch.Tensor]` one of PyTorch tensors.
    """

    __slots__ = ("cu_seqlens", "ids", "on_device", "position_ids", "type_ids")

    ids: IdArray
    cu_seqlens: IdArray
    type_ids: IdArray | None
    position_ids: IdArray | None

    @overload
    def __init__(
        self: PackedTokens[Int32Array],
        ids: TokenSequence,
        cu_seqlens: TokenSequence,
        type_ids: TokenSequence | None = ...,
        position_ids: TokenSequence | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: PackedTokens[Foreign],
        ids: Foreign,
        cu_seqlens: Foreign,
        type_ids: Foreign | None = ...,
        position_ids: Foreign | None = ...,
    ) -> None: ...
    def __init__(
        self,
        ids: Any,
        cu_seqlens: Any,
        type_ids: Any = None,
        position_ids: Any = None,
    ) -> None:
        given = {
            "ids": ids,
            "cu_seqlens": cu_seqlens,
            "type_ids": type_ids,
            "position_ids": position_ids,
        }
        there = {name: is_device_array(a) for name, a in given.items() if a is not None}
        self.on_device = any(there.values())
        if not self.on_device:
            given = {name: None if a is None else as_int32(name, a) for name, a in given.items()}
        elif not all(there.values()):
            here = ", ".join(name for name in there if not there[name])
            raise ValueError(
                f"{', '.join(name for name in there if there[name])} on a device, but {here} in "
                "host memory; expected all in one place"
            )
        self.ids, self.cu_seqlens = given["ids"], given["cu_seqlens"]
        self.type_ids, self.position_ids = given["type_ids"], given["position_ids"]
        for name in there:
            shape = shape_of(given[name])
            if len(shape) != 1:
                raise ValueError(f"{name} has shape {shape}, expected one dimension")
            if name != "cu_seqlens" and shape[0] != self.num_tokens:
                raise ValueError(f"{name} has {shape[0]} elements, ids has {self.num_tokens}")
        if self.num_sequences < 0:
            raise ValueError("cu_seqlens is empty, expected B + 1 elements, the first of them 0")

    @classmethod
    def of_checked(
        cls, ids: Int32Array, cu_seqlens: Int32Array, type_ids: Int32Array | None
    ) -> PackedTokens[Int32Array]:
        """A batch of C-contiguous int32 vectors in host memory that fit each other, which are not
        checked again: for batches of few tokens the checks take longer than all else."""
        made: PackedTokens[Int32Array] = PackedTokens.__new__(PackedTokens)
        made.ids, made.cu_seqlens, made.type_ids = ids, cu_seqlens, type_ids
        made.position_ids, made.on_device = None, False
        return made

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens of all sequences."""
        return int(shape_of(self.ids)[0])

    @property
    def num_sequences(self) -> int:
        """B, the number of sequences."""
        return int(shape_of(self.cu_seqlens)[0]) - 1

    @property
    def lengths(self) -> Int32Array:
        """int32[B]: the length of each sequence. Only for batches in host memory."""
        return np.diff(as_int32("cu_seqlens", self.cu_seqlens))

    @property
    def max_seqlen(self) -> int:
        """The length of the longest sequence, or 0 without sequences. Only for batches in host
        memory."""
        return int(self.lengths.max(initial=0))

    def __repr__(self) -> str:
        return f"PackedTokens({self.num_tokens} tokens in {self.num_sequences} sequences)"


def _offsets(lengths: Sequence[int]) -> Int32Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return as_int32("cu_seqlens", offsets)


def _concatenate(name: str, sequences: Sequence[TokenSequence]) -> Int32Array:
    parts = [as_int32(f"{name}[{i}]", sequence) for i, sequence in enumerate(sequences)]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def batch_ranges(ends: Sequence[Sequence[int]], limits: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) of sequences that are each within the limits, as long as may be. A
    sequence that exceeds a limit by itself is a range.

    ends    of each limit, how much the first i sequences have together, for i from 0 on
    """
    first, count = 0, len(ends[0]) - 1
    while first < count:
        last = min(
            bisect_right(of_kind, of_kind[first] + limit) - 1
            for of_kind, limit in zip(ends, limits, strict=True)
        )
        last = max(last, first + 1)
        yield first, last
        first = last


def pack(
    sequences: Iterable[TokenSequence],
    attention_mask: npt.ArrayLike | None = None,
    *,
    type_ids: Any = None,
) -> PackedTokens:
    """Packs a list of token-id sequences, or padded ids `[B, S]` with their attention mask.

    sequences       one list or vector of ids for each sequence, or an integer array [B, S]
    attention_mask  [B, S], nonzero for tokens and 0 for padding, which may lie on any side
    type_ids        of the same shape as `sequences`, or None

    Raises ValueError naming what was found and what was expected.
    """
    if attention_mask is not None:
        return _pack_padded(np.asarray(sequences), np.asarray(attention_mask), type_ids)
    rows = list(sequences)
    ids = _concatenate("sequences", rows)
    lengths = [len(row) for row in rows]
    if type_ids is None:
        return PackedTokens(ids, _offsets(lengths))
    type_rows = list(type_ids)
    type_lengths = [len(row) for row in type_rows]
    if type_lengths != lengths:
        raise ValueError(f"type_ids has lengths {type_lengths}, sequences have {lengths}")
    return PackedTokens(ids, _offsets(lengths), _concatenate("type_ids", type_rows))


def _pack_padded(ids: npt.NDArray[Any], mask: npt.NDArray[Any], type_ids: Any) -> PackedTokens:
    if ids.ndim != 2 or mask.shape != ids.shape:
        raise ValueError(
            f"padded ids have shape {ids.shape} and attention_mask {mask.shape}, "
            "expected the same [B, S]"
        )
    keep = mask != 0
    types = None
    if type_ids is not None:
        type_array = np.asarray(type_ids)
        if type_array.shape != ids.shape:
            raise ValueError(f"type_ids have shape {type_array.shape}, expected {ids.shape}")
        types = type_array[keep]
    return PackedTokens(ids[keep], _offsets(keep.sum(axis=1).tolist()), types)
