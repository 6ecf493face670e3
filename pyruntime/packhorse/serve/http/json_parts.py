"""JSON of large values, written part by part.

The package orjson writes a value in one step, in which no other thread of Python runs. Parts are
small enough for that, and joined they are what it writes of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from packhorse.serve.models.weight import MUCH, weight


def to_json(content: Any) -> bytes:
    """NumPy arrays and numbers included; what is not finite becomes null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def json_parts(content: Any) -> Iterator[bytes]:
    """The JSON of a value; takes what `to_json` takes."""
    if weight(content) <= MUCH or not isinstance(content, dict | list | tuple | np.ndarray):
        yield to_json(content)
    elif isinstance(content, dict):
        separator = b"{"
        for name, value in content.items():
            yield separator + to_json(str(name)) + b":"
            yield from json_parts(value)
            separator = b","
        yield b"}"
    else:
        separator = b"["
        for some in _some_at_a_time(content):
            yield separator
            if len(some) == 1 and weight(some[0]) > MUCH:
                yield from json_parts(some[0])
            else:
                yield to_json(some)[1:-1]
            separator = b","
        yield b"]"


def _some_at_a_time(items: Any) -> Iterator[Any]:
    """Slices of a list or an array, each of one item or of no more than one part holds."""
    if isinstance(items, np.ndarray):
        step = max(1, MUCH // max(1, items.size // len(items)))
        yield from (items[begin : begin + step] for begin in range(0, len(items), step))
        return
    begin = held = 0
    for end, item in enumerate(items):
        size = weight(item)
        if held + size > MUCH and end > begin:
            yield items[begin:end]
            begin, held = end, 0
        held += size
    yield items[begin:]
