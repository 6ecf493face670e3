"""Broken copies of the JSON and GGUF files of models: one field at a time is something else."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from packhorse_weights.errors import CheckpointError

VALUES: tuple[Any, ...] = (
    None,
    "",
    "x",
    [],
    {},
    -1,
    0,
    1,
    2**31 - 1,
    2**63,
    10**400,
    0.5,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    True,
    [[[]]],
    [None, {}],
    {"x": [{}]},
    {"0": None},
)


def _places(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every field down to a depth; of a list, of its first two elements."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    else:
        keys = list(range(min(len(value), 2))) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        if depth > 1:
            yield from _places(value[key], depth - 1)


def mutations(fields: Any, depth: int = 3, each: int = len(VALUES)) -> Iterator[tuple[str, Any]]:
    """(what was changed, a copy of the fields with one of them changed), `each` times for a field:
    fewer than all values are other ones for each field."""
    whole = copy.deepcopy(fields)
    values = itertools.cycle(VALUES)
    for container, key in list(_places(whole, depth)):
        before = container[key]
        for value in itertools.islice(values, each):
            container[key] = value
            yield f"{key} = {value!r:.40}", whole
        container[key] = before


def check(read: Callable[[], object], what: str) -> None:
    """Calls a reader of broken files, which may find them good, and otherwise says why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            read()
        except CheckpointError:
            return
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
