"""Checks of single options with which a model is loaded, and values made of what people write.

Checks take the name by which the caller knows the option and what was given, and return it in one
form or raise ValueError. None stands for a default."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.ASCII)
# More threads than this for each core only wait for one another.
_THREADS_PER_CORE = 16


def is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check_count(name: str, value: Any) -> Any:
    if value is not None and not is_count(value):
        raise ValueError(f"{name} is {value!r:.80}, expected a whole number")
    return value


def check_switch(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {value!r:.80}, expected True or False")
    return value


def check_threads(name: str, value: Any) -> Any:
    most = _THREADS_PER_CORE * cores()
    if value is None or (is_count(value) and 1 <= value <= most):
        return value
    raise ValueError(
        f"{name} is {value!r:.80}, expected 1 to {most}, or None for one on each core that this "
        f"process may use ({cores()})"
    )


def parse_bytes(name: str, value: int | str | None) -> int | None:
    """A number of bytes, or a text such as "1GB" (10^9) or "512MiB" (512 x 2^20), as bytes."""
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.upper())):
        unit = found[2]
        factor = _BINARY[unit] if unit in _BINARY else _UNITS.get(unit)
        if factor is not None:
            return int(float(found[1]) * factor)
    if value is None or (is_count(value) and int(value) >= 0):
        return None if value is None else int(value)
    raise ValueError(
        f"{name} is {value!r:.80}, expected bytes from 0 on, or a text such as '1GB' or '512MiB'"
    )


def read_poolings(text: str) -> Any:
    """The name of a pooling, or a list of names that have commas between."""
    names = [name for name in text.split(",") if name]
    return names[0] if len(names) == 1 else names or None


def read_template(text: str) -> Any:
    """The name of a template, or the fields in a file. Raises ValueError or FileNotFoundError."""
    if not text.endswith(".json"):
        return text
    from packhorse_weights.files import read_json

    return read_json(Path(text), named=True)
