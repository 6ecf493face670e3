"""Reads model.bin, the file of CTranslate2.

The format (docs/conversion.md of CTranslate2, "Model format"; `model_spec.py` writes it), all
numbers little-endian: version u32; name of the model's kind, revision u32; number of variables u32,
and of each a name, rank u8, dimensions u32, dtype u8, bytes u32, payload; number of aliases u32,
and of each its name and that of its variable. A name is a length u16, its text and a zero byte,
which the length counts. Versions 4 to 6 differ in how activations were rounded, not in the file.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import map_file
from packhorse_weights.tensor import PAYLOADS, LazyTensor, Tensor

VERSIONS = range(4, 7)
_DTYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")  # by their numbers
_MAX_RANK = 8
_MAX_NAMES = 1 << 17  # variables, and aliases


@dataclass(frozen=True)
class Variables:
    """The contents of a model.bin. tensors: by name, read-only views of the file, those of aliases
    included; scalars have no dimensions. aliases: name -> the variable that it stands for."""

    kind: str  # such as "TransformerSpec"
    revision: int
    version: int
    tensors: dict[str, Tensor]
    aliases: dict[str, str]

    def scalar(self, name: str, default: float, where: str) -> float:
        """A number; `default` where there is none. Raises CheckpointError for an array."""
        found = self.tensors.get(name)
        if found is None:
            return default
        if found.size != 1 or found.dtype == "bfloat16":
            raise CheckpointError(f"{where}: {name} is {found.describe()}, expected one number")
        value = float(found.data.reshape(-1)[0])
        if not math.isfinite(value):
            raise CheckpointError(f"{where}: {name} is {value}, expected a finite number")
        return value


class _Reader:
    """Takes one thing after another from a file, never beyond its end."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0
        self._data: mmap.mmap = map_file(path)

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: byte {self._at}: {what}")

    def number(self, form: str, what: str) -> int:
        size = struct.calcsize(form)
        self._need(size, what)
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += size
        return int(value)

    def name(self, what: str) -> str:
        size = self.number("H", what)
        self._need(size, what)
        raw = self._data[self._at : self._at + size]
        if size < 2 or raw[-1] != 0:
            raise self.error(f"{what} of {size} bytes, expected a text that ends in a zero byte")
        try:
            text = raw[:-1].decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} {raw[:40]!r} is not UTF-8") from None
        self._at += size
        return text

    def payload(self, dtype: str, shape: tuple[int, ...], size: int, what: str) -> Tensor:
        payload = PAYLOADS[dtype]
        expected = math.prod(shape) * payload.itemsize
        if size != expected:
            raise self.error(f"{what} {dtype}{list(shape)} has {size} bytes, expected {expected}")
        self._need(size, what)
        flat = np.frombuffer(self._data, payload, math.prod(shape), self._at)
        self._at += size
        return Tensor(flat.reshape(shape), dtype)

    def count(self, what: str, least: int) -> int:
        """A number of things that take `least` bytes each."""
        number = self.number("I", f"the number of {what}")
        if number > min(_MAX_NAMES, (len(self._data) - self._at) // least):
            raise self.error(f"{number} {what} in the {len(self._data) - self._at} bytes left")
        return number

    def _need(self, size: int, what: str) -> None:
        left = len(self._data) - self._at
        if size > left:
            raise self.error(f"{what} of {size} bytes, but {left} are left")

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)


def is_ctranslate2(path: Path) -> bool:
    """True if a file begins as one of CTranslate2 does, of whatever version."""
    data = map_file(path)
    if len(data) < 7:
        return False
    version, size = struct.unpack_from("<IH", data)
    return bool(0 < version < 64 and 1 < size <= len(data) - 6 and data[5 + size] == 0)


def read_ctranslate2(path: Path) -> Variables:
    """All variables of a model.bin. Raises CheckpointError for anything that the format does not
    allow."""
    reader = _Reader(path)
    version = reader.number("I", "the version")
    if version not in VERSIONS:
        raise CheckpointError(
            f"{path}: version {version} of the format, expected {VERSIONS[0]} to {VERSIONS[-1]}; "
            "convert the model anew by a current ctranslate2"
        )
    kind = reader.name("the name of the specification")
    revision = reader.number("I", "the revision")
    tensors: dict[str, Tensor] = {}
    for _ in range(reader.count("variables", 10)):
        name = reader.name("the name of a variable")
        if name in tensors:
            raise reader.error(f"the variable {name!r:.120} appears twice")
        rank = reader.number("B", f"the rank of {name!r:.120}")
        if rank > _MAX_RANK:
            raise reader.error(f"{name!r:.120} has {rank} dimensions, expected {_MAX_RANK} at most")
        shape = tuple(reader.number("I", f"a dimension of {name!r:.120}") for _ in range(rank))
        number = reader.number("B", f"the dtype of {name!r:.120}")
        if number >= len(_DTYPES):
            known = ", ".join(f"{i} ({one})" for i, one in enumerate(_DTYPES))
            raise reader.error(f"{name!r:.120} has the dtype {number}, expected {known}")
        size = reader.number("I", f"the size of {name!r:.120}")
        tensors[name] = reader.payload(_DTYPES[number], shape, size, f"{name!r:.120}")
    aliases: dict[str, str] = {}
    for _ in range(reader.count("aliases", 6)):
        alias, name = reader.name("an alias"), reader.name("the variable of an alias")
        if alias in tensors or alias in aliases:
            raise reader.error(f"the alias {alias!r:.120} appears twice, or is a variable")
        if name not in tensors:
            raise reader.error(f"the alias {alias!r:.120} of {name!r:.120}, which is no variable")
        aliases[alias] = name
    if not reader.at_end:
        raise reader.error("bytes after the last alias")
    all_names = {**tensors, **{alias: tensors[name] for alias, name in aliases.items()}}
    return Variables(kind, revision, version, all_names, aliases)


def scaled(weight: Tensor, scale: Tensor | None, what: str) -> Tensor:
    """A weight as floats. int8 [out, in] has a scale for each row, int16 one for all: a value is a
    whole number divided by its scale. Raises CheckpointError."""
    if weight.dtype in ("float32", "float16", "bfloat16"):
        return weight
    if weight.dtype not in ("int8", "int16") or scale is None or scale.dtype != "float32":
        found = "no scale" if scale is None else f"a scale {scale.describe()}"
        raise CheckpointError(f"{what}: {weight.describe()} with {found} is not supported")
    rows = weight.shape[:1] if weight.dtype == "int8" else ()
    if math.prod(scale.shape) != math.prod(rows):
        raise CheckpointError(f"{what}: {weight.describe()} with a scale {scale.describe()}")
    factors = scale.data.reshape(rows + (1,) * (len(weight.shape) - 1) if rows else ())
    if not (factors > 0).all() or not np.isfinite(factors).all():
        raise CheckpointError(f"{what}: scales that are not positive numbers")

    def make() -> NDArray[np.float32]:
        return np.ascontiguousarray(weight.data / factors, np.float32)

    stored = weight.dtype, weight.size * PAYLOADS[weight.dtype].itemsize
    return LazyTensor(make, weight.shape, "float32", stored)


def rows_of(tensor: Tensor, first: int, last: int) -> Tensor:
    """Rows of a matrix, or numbers of a vector."""
    if not isinstance(tensor, LazyTensor):
        return Tensor(tensor.data[first:last], tensor.dtype)
    whole, shape = tensor, (last - first, *tensor.shape[1:])
    make: Callable[[], NDArray[np.float32]] = lambda: whole.data[first:last]  # noqa: E731
    name, size = tensor.stored
    share = size * (last - first) // max(1, tensor.shape[0])
    return LazyTensor(make, shape, tensor.dtype, (name, share))
