"""Reads the pickle inside a PyTorch checkpoint without executing anything.

This is a small interpreter of our own rather than a subclass of `pickle.Unpickler`. It has only the
opcodes that `torch.save` writes for tensors, so there is nothing to switch off, and no opcode of
the C unpickler (such as a huge memo index) can do harm. The `pickletools` module of CPython
documents the opcodes.
"""

from __future__ import annotations

import mmap
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from packhorse_weights.errors import CheckpointError
from packhorse_weights.tensor import PAYLOADS, Tensor, is_addressable

MAX_PICKLE_BYTES = 16 << 20  # the most bytes of a pickle that are read

# torch.<name>Storage -> the dtype of its elements.
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


@dataclass(frozen=True, slots=True)
class Storage:
    """Flat memory in the file: `count` elements of `dtype`, which the file identifies by `key`."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class StridedTensor:
    """A view of a storage. Offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, buffer: mmap.mmap, begin: int) -> Tensor:
        """Returns the tensor as a read-only view of a file in which its storage begins at byte
        `begin`."""
        payload = PAYLOADS[self.storage.dtype]
        if not is_addressable(self.shape, payload.itemsize):
            raise CheckpointError(
                f"a tensor of shape {list(self.shape)} is larger than any array can be"
            )
        if 0 in self.shape:
            return Tensor(np.empty(self.shape, payload), self.storage.dtype)
        # The stride of a dimension with one element has no meaning and may be any number.
        strides = tuple(
            payload.itemsize * (stride if size > 1 else 1)
            for size, stride in zip(self.shape, self.strides, strict=True)
        )
        start = begin + self.offset * payload.itemsize
        data = np.ndarray(self.shape, payload, buffer, start, strides)
        return Tensor(data, self.storage.dtype)


@dataclass(frozen=True, slots=True)
class _StorageType:
    dtype: str


@dataclass(frozen=True, slots=True)
class _Function:
    """A global that the pickle may call. `call` checks its own arguments."""

    name: str
    call: Callable[..., object]


_MARK = object()


def show(value: object) -> str:
    """Describes a value for messages. It does not use the repr of containers, which shared nesting
    can make exponentially long."""
    plain = isinstance(value, str | int | float | None)
    return f"{value!r:.80}" if plain else f"a {type(value).__name__}"


def _counts(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(v) is int and v >= 0 for v in value):
        raise CheckpointError(f"{what}: expected a tuple of whole numbers from 0")
    return value


def _rebuild_tensor(
    storage: object = None,
    offset: object = None,
    shape: object = None,
    strides: object = None,
    *_: object,  # requires_grad, hooks, metadata: a weight needs none of them
) -> StridedTensor:
    if not isinstance(storage, Storage):
        raise CheckpointError(f"a tensor is built from {show(storage)}, not from a storage")
    (start,) = _counts((offset,), "tensor offset")
    sizes, steps = _counts(shape, "tensor shape"), _counts(strides, "tensor strides")
    if len(sizes) != len(steps) or len(sizes) > 32:
        raise CheckpointError(f"a tensor has {len(sizes)} dimensions and {len(steps)} strides")
    elements = 1
    for size in sizes:
        elements *= size
    last = start + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    # Strides can describe far more elements than the storage has, so that is refused.
    if elements > storage.count or (elements > 0 and last >= storage.count):
        raise CheckpointError(
            f"a tensor of shape {list(sizes)} with strides {list(steps)} at offset {start} "
            f"does not lie within its storage of {storage.count} elements"
        )
    return StridedTensor(storage, start, sizes, steps)


def _rebuild_parameter(data: object = None, *_: object) -> object:
    if not isinstance(data, StridedTensor):
        raise CheckpointError(f"a parameter is built from {show(data)}, not from a tensor")
    return data


def _ordered_dict(*pairs: object) -> dict[object, object]:
    if pairs:
        raise CheckpointError("an OrderedDict is built from arguments; expected none")
    return {}


def _size(value: object = None) -> tuple[int, ...]:
    return _counts(value, "torch.Size")


_GLOBALS: dict[str, _StorageType | _Function] = {
    "torch._utils._rebuild_tensor_v2": _Function("_rebuild_tensor_v2", _rebuild_tensor),
    "torch._utils._rebuild_parameter": _Function("_rebuild_parameter", _rebuild_parameter),
    "collections.OrderedDict": _Function("OrderedDict", _ordered_dict),
    "torch.Size": _Function("torch.Size", _size),
    **{f"torch.{name}": _StorageType(dtype) for name, dtype in _STORAGES.items()},
}


def _persistent(pid: object) -> Storage:
    """Reads what `torch.save` writes for a storage: ("storage", type, key, location, count). Files
    from before version 1.6 have one more field, which is always None in checkpoints."""
    if isinstance(pid, tuple) and len(pid) == 6 and pid[5] is None:
        pid = pid[:5]
    match pid:
        case ("storage", _StorageType(dtype=dtype), str(key), str(), int(count)) if (
            type(count) is int and count >= 0 and key.isascii() and key.isalnum()
        ):
            return Storage(dtype, key, count)
    raise CheckpointError(
        'a storage reference is not ("storage", type, key of letters and digits, location, count)'
    )


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise CheckpointError("the pickle takes more from its stack than there is")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        for start in range(len(self.stack) - 1, -1, -1):
            if self.stack[start] is _MARK:
                items = self.stack[start + 1 :]
                del self.stack[start:]
                return items
        raise CheckpointError("the pickle closes a group that was never opened")

    def top(self, kind: type[Any], opcode: str) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise CheckpointError(f"the pickle applies {opcode} to something else")
        return self.stack[-1]

    def set_items(self, items: list[Any], opcode: str) -> None:
        target = self.top(dict, opcode)
        if len(items) % 2:
            raise CheckpointError("the pickle sets a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):  # hashing a deep tuple would overflow the C stack
                raise CheckpointError(f"a dictionary key is a {type(key).__name__}")
            target[key] = value

    def global_(self, module: object, name: object) -> None:
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""
        if full not in _GLOBALS:
            raise CheckpointError(
                f"the pickle asks for {full!r:.120}, which is not part of plain tensors: refused. "
                "Convert the checkpoint to safetensors where you trust it"
            )
        self.stack.append(_GLOBALS[full])

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if type(function) is not _Function or type(arguments) is not tuple:
            raise CheckpointError(
                f"the pickle calls {show(function)} with {show(arguments)}: refused"
            )
        try:
            self.stack.append(function.call(*arguments))
        except TypeError:
            raise CheckpointError(
                f"the pickle calls {function.name} with {len(arguments)} arguments"
            ) from None

    def persistent(self) -> None:
        storage = _persistent(self.pop())
        if self.storages.setdefault(storage.key, storage) != storage:
            raise CheckpointError(f"the storage {storage.key} has two sizes or dtypes")
        self.stack.append(storage)

    def build(self) -> None:
        self.pop()  # the state of an OrderedDict, which modules write (`_metadata`): not needed
        self.top(dict, "BUILD")


def _step(m: _Machine, opcode: str, arg: Any) -> None:
    match opcode:
        case "PROTO" | "FRAME":
            pass
        case "MARK":
            m.stack.append(_MARK)
        case "EMPTY_DICT":
            m.stack.append({})
        case "EMPTY_LIST":
            m.stack.append([])
        case "EMPTY_TUPLE":
            m.stack.append(())
        case "NONE":
            m.stack.append(None)
        case "NEWTRUE" | "NEWFALSE":
            m.stack.append(opcode == "NEWTRUE")
        case (
            "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT"
            | "BINUNICODE" | "SHORT_BINUNICODE"
        ):  # fmt: skip
            m.stack.append(arg)
        case "TUPLE":
            m.stack.append(tuple(m.pop_to_mark()))
        case "TUPLE1":
            m.stack.append((m.pop(),))
        case "TUPLE2":
            second = m.pop()
            m.stack.append((m.pop(), second))
        case "TUPLE3":
            third, second = m.pop(), m.pop()
            m.stack.append((m.pop(), second, third))
        case "SETITEM":
            value, key = m.pop(), m.pop()
            m.set_items([key, value], opcode)
        case "SETITEMS":
            m.set_items(m.pop_to_mark(), opcode)
        case "APPEND":
            value = m.pop()
            m.top(list, opcode).append(value)
        case "APPENDS":
            values = m.pop_to_mark()
            m.top(list, opcode).extend(values)
        case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
            value = m.pop()
            m.stack.append(value)
            m.memo[len(m.memo) if opcode == "MEMOIZE" else arg] = value
        case "BINGET" | "LONG_BINGET":
            if arg not in m.memo:
                raise CheckpointError(f"the pickle reads memo {arg}, which was never written")
            m.stack.append(m.memo[arg])
        case "GLOBAL":
            m.global_(*arg.split(" ", 1))
        case "STACK_GLOBAL":
            name, module = m.pop(), m.pop()
            m.global_(module, name)
        case "BINPERSID":
            m.persistent()
        case "REDUCE":
            m.reduce()
        case "BUILD":
            m.build()
        case _:
            raise CheckpointError(f"the pickle uses opcode {opcode}: refused")


@dataclass(frozen=True, slots=True)
class Pickle:
    """The result of reading a pickle. `value` consists of dicts, lists, tuples, scalars and
    StridedTensor. `size` is the number of bytes of the pickle itself. `storages` holds all storages
    that it names, by key."""

    value: Any
    size: int
    storages: dict[str, Storage]


def read_pickle(data: bytes) -> Pickle:
    """Reads the pickle at the beginning of `data`.

    Raises CheckpointError on every opcode and every global outside the closed list.
    """
    machine = _Machine()
    try:
        for opcode, arg, position in pickletools.genops(data):
            if opcode.name == "STOP":
                return Pickle(machine.pop(), (position or 0) + 1, machine.storages)
            _step(machine, opcode.name, arg)
    except CheckpointError:
        raise
    except (ValueError, IndexError, EOFError, OverflowError) as error:
        raise CheckpointError(f"not a valid pickle: {error!s:.120}") from None
    raise CheckpointError("not a valid pickle: it does not end")
