"""The weight of a value of JSON: how much it holds, counted no further than it matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

MUCH = 16_384  # weight of an answer that the event loop writes in about a millisecond


def weight(value: Any, most: int = MUCH) -> int:
    """About how many numbers or words a value is: exact up to `most`, more than that beyond it.

    A text counts one for every eight characters, an array its elements, anything else one and what
    it holds.
    """
    found = 0
    rest = [value]
    while rest and found <= most:
        one = rest.pop()
        if isinstance(one, str | bytes):
            found += 1 + len(one) // 8
        elif isinstance(one, np.ndarray):
            found += one.size
        elif isinstance(one, Mapping):
            found += 1 + len(one)
            rest.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            found += 1
            if found + len(one) > most:
                return found + len(one)
            rest.extend(one)
        elif is_dataclass(one) and not isinstance(one, type):
            rest.extend(getattr(one, field.name) for field in fields(one))
        else:
            found += 1
    return found
