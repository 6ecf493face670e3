"""Reading and writing safetensors files.

The format (safetensors README, "Format") is: the length of the header as little-endian u64; the
header, a JSON object name -> {dtype, shape, data_offsets}; then the bytes of the tensors, without
gaps.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import map_file, parse_json_object
from packhorse_weights.tensor import PAYLOADS, Tensor, cast_blocks, is_addressable

Progress = Callable[[int, int], None]  # (bytes written, bytes in total)

_MAX_HEADER_BYTES = 16 << 20  # a tensor takes about 100; parsed JSON takes far more memory
_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "F8_E4M3": "float8",
    "BOOL": "bool",
}
_CODES = {name: code for code, name in _NAMES.items()}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _counts(entry: Mapping[str, Any], key: str, where: str) -> list[int]:
    value = entry[key]
    if not isinstance(value, list) or not all(map(_is_count, value)):
        raise CheckpointError(f"{where}: {key} is {value!r}; expected whole numbers from 0")
    return value


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Returns all tensors of a file, as read-only views of it. The whole header is checked first.

    Raises CheckpointError on anything that the format does not allow: a header that does not fit
    the file, unknown dtypes, sizes that do not follow from shape and dtype, overlaps and gaps.
    """
    buffer = map_file(path)
    if len(buffer) < 8:
        raise CheckpointError(f"{path}: {len(buffer)} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", buffer[:8])
    if length > min(len(buffer) - 8, _MAX_HEADER_BYTES):
        raise CheckpointError(
            f"{path}: header of {length} bytes in a file of {len(buffer)} "
            f"(limit {_MAX_HEADER_BYTES}): truncated, or not a safetensors file"
        )
    header = parse_json_object(buffer[8 : 8 + length], f"{path}: header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map text to text")

    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        where = f"{path}: tensor {name!r}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise CheckpointError(f"{where}: expected exactly dtype, shape and data_offsets")
        code = entry["dtype"]
        if not isinstance(code, str) or code not in _NAMES:
            raise CheckpointError(f"{where}: dtype {code!r} is not one of {', '.join(_NAMES)}")
        shape = _counts(entry, "shape", where)
        offsets = _counts(entry, "data_offsets", where)
        if len(shape) > 32 or len(offsets) != 2:
            raise CheckpointError(f"{where}: {len(shape)} dimensions, {len(offsets)} offsets")
        begin, end = offsets
        payload = PAYLOADS[_NAMES[code]]
        if (size := math.prod(shape) * payload.itemsize) != end - begin:
            raise CheckpointError(
                f"{where}: {code}{shape} takes {size} bytes, data_offsets span {end - begin}"
            )
        if not is_addressable(shape, payload.itemsize):
            raise CheckpointError(f"{where}: shape {shape} is larger than any array can be")
        if end > len(buffer) - 8 - length:
            raise CheckpointError(
                f"{where}: ends at byte {end} of {len(buffer) - 8 - length}: truncated file?"
            )
        spans.append((begin, end, name))
        data = np.ndarray(tuple(shape), payload, buffer, 8 + length + begin)
        tensors[name] = Tensor(data, _NAMES[code])

    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            kind = "overlaps the one before it" if begin < position else "leaves a gap before it"
            raise CheckpointError(f"{path}: tensor {name!r} {kind} ({begin}, not {position})")
        position = end
    if position != len(buffer) - 8 - length:
        raise CheckpointError(
            f"{path}: {len(buffer) - 8 - length} bytes of data, the tensors take {position}"
        )
    return tensors


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    dtypes: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Writes tensors in the order given (wider elements first, so that all are aligned).

    dtypes: name -> the dtype to cast it to (see `cast_blocks`), for all names; None keeps each
    dtype. Only one block of a tensor is held in memory at a time. The same input gives the same
    bytes.
    """
    targets = dtypes or {name: tensor.dtype for name, tensor in tensors.items()}
    order = sorted(tensors, key=lambda name: -PAYLOADS[targets[name]].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name in order:
        size = tensors[name].data.size * PAYLOADS[targets[name]].itemsize
        header[name] = {
            "dtype": _CODES[targets[name]],
            "shape": list(tensors[name].shape),
            "data_offsets": [total, total + size],
        }
        total += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            for block in cast_blocks(tensors[name], targets[name], name):
                file.write(np.ascontiguousarray(block).data)
                done += block.nbytes
                if progress is not None:
                    progress(done, total)
