"""Checks of the arguments with which a model is loaded or planned: their types, and sizes that
people write as text."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_COUNTS = (
    "max_length",
    "max_tokens",
    "max_sequences",
    "max_predictions",
    "max_queue",
    "output_slots",
    "kv_tokens",
    "max_adapters",
    "max_adapter_rank",
    "draft_tokens",
)
_SWITCHES = ("pin_threads", "prefix_cache")
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


def check_load(given: Mapping[str, Any]) -> None:
    """Raises ValueError for an argument that is not of its kind. Ranges are checked where models
    and devices are known."""
    for name in _COUNTS:
        value = given.get(name)
        if value is not None and not is_count(value):
            raise ValueError(f"{name} is {value!r:.80}, expected a whole number")
    for name in _SWITCHES:
        value = given.get(name)
        if value is not None and not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} is {value!r:.80}, expected True or False")
    _check_threads(given.get("threads"))
    parse_bytes("memory_limit", given.get("memory_limit"))


def _check_threads(threads: object) -> None:
    most = _THREADS_PER_CORE * cores()
    if threads is None or (is_count(threads) and 1 <= threads <= most):  # type: ignore[operator]
        return
    raise ValueError(
        f"threads is {threads!r:.80}, expected 1 to {most}, or None for one on each core that this "
        f"process may use ({cores()})"
    )


def parse_bytes(name: str, value: int | str | None) -> int | None:
    """A number of bytes, or a text such as "1GB" (10^9) or "512MiB" (512 x 2^20), as bytes.

    Raises ValueError, in which `name` is what the caller calls it.
    """
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
