"""The fields of a request's body, checked one by one, with messages that name them.

A field that is null counts as one that is left out. Fields that a protocol has and the server does
not are refused by name (`refuse`); others, which no protocol has, are ignored, as the protocols do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from packhorse.serve.errors import ServeError

Found = TypeVar("Found")


def shown(value: Any) -> str:
    """A value in a message: its beginning, for which no more of it is written than that."""
    if isinstance(value, str | list):
        value = value[:80]
    if isinstance(value, list):
        return f"[{', '.join(shown(one) for one in value[:20])}]"[:80]
    if isinstance(value, dict):
        first = itertools.islice(value.items(), 20)
        return f"{{{', '.join(f'{shown(key)}: {shown(one)}' for key, one in first)}}}"[:80]
    return f"{value!r:.80}"


class Fields:
    """The fields of one JSON object. All methods raise ServeError ("validation").

    where  what stands before names in messages, such as "inputs."
    """

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self._where = where

    def wrong(self, name: str, expected: str) -> NoReturn:
        """Raises the error for a field that is not what was expected."""
        full = f"{self._where}{name}"
        if self._values.get(name) is None:
            raise ServeError(
                "validation", f"{full} is missing, expected {expected}", parameter=full
            )
        found = shown(self._values[name])
        raise ServeError("validation", f"{full} is {found}, expected {expected}", parameter=full)

    def checked(self, find: Callable[[], Found]) -> Found:
        """What a function finds; its ValueError is one of the request."""
        try:
            return find()
        except ValueError as error:
            raise ServeError("validation", str(error)) from None

    def get(self, name: str) -> Any:
        """As it is; None where it is left out."""
        return self._values.get(name)

    def refuse(self, *names: str) -> None:
        """Fields that are not supported; those that say nothing (null, false, empty) may be."""
        for name in names:
            if self._values.get(name):
                full = f"{self._where}{name}"
                raise ServeError("unsupported", f"{full} is not supported", parameter=full)

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without `default` it must be there."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self.wrong(name, "a text")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            self.wrong(name, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, "true or false")
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in allowed:
            self.wrong(name, " or ".join(f'"{one}"' for one in allowed))
        return value

    def integer(self, name: str, least: int, most: int | None = None) -> int | None:
        """None where it is left out."""
        value = self._values.get(name)
        if value is None:
            return None
        ends = f"{least} or more" if most is None else f"{least} to {most}"
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.wrong(name, f"an integer, {ends}")
        if most is not None and value > most:
            self.wrong(name, f"an integer, {ends}")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """None where it is left out."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(name, f"a number, {least} to {most}")
        if not least <= value <= most:
            self.wrong(name, f"a number, {least} to {most}")
        return float(value)

    def table(self, name: str) -> Fields | None:
        """An object; None where it is left out."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, "an object")
        return Fields(value, f"{self._where}{name}.")

    def at_most(self, name: str, most: int) -> None:
        """Refuses a list or an object of more items, and takes anything else."""
        value = self._values.get(name)
        if isinstance(value, list | dict) and len(value) > most:
            full = f"{self._where}{name}"
            raise ServeError(
                "validation",
                f"{full} has {len(value)} items, at most {most} are taken",
                parameter=full,
            )

    def texts(self, name: str, most: int) -> list[str]:
        """A list of texts that is not empty, and not longer than `most`."""
        value = self._values.get(name)
        if isinstance(value, list):
            check_count(f"{self._where}{name}", len(value), most)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.wrong(name, "a list of texts")
        return value

    def inputs(self, name: str, most: int) -> Inputs:
        """A text, the ids of one, or a list of texts or of such ids."""
        value = self._values.get(name)
        found = Inputs.read(value)
        if found is None:
            self.wrong(name, "a text, a list of texts, ids, or a list of lists of ids")
        check_count(f"{self._where}{name}", len(found.items), most)
        if found.items == [""] or found.items == [[]]:
            raise ServeError("empty", f"{self._where}{name} is empty", parameter=name)
        return found


class Inputs:
    """Texts, or token ids of texts.

    single  whether there is one that is not in a list
    ids     whether they are ids
    """

    __slots__ = ("characters", "ids", "items", "single")

    def __init__(self, items: list[Any], single: bool, ids: bool) -> None:
        self.items = items
        self.single = single
        self.ids = ids
        self.characters = 0 if ids else sum(map(len, items))

    @classmethod
    def read(cls, value: Any) -> Inputs | None:
        """None where it is nothing of the kind."""
        if isinstance(value, str):
            return cls([value], True, False)
        if not isinstance(value, list):
            return None
        if all(isinstance(one, str) for one in value):
            return cls(value, False, False)
        if are_ids(value):
            return cls([value], True, True)
        if all(isinstance(one, list) and are_ids(one) for one in value):
            return cls(value, False, True)
        return None


def are_ids(value: list[Any]) -> bool:
    """Whether all of a list are integers that a token's id may be."""
    if not value:
        return True
    # Each step runs in C: a text may have hundreds of thousands of ids.
    return set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**31


def check_count(name: str, count: int, most: int) -> None:
    """Raises ServeError for a list that is empty or too long."""
    if count == 0:
        raise ServeError("empty", f"{name} is empty", parameter=name)
    if count > most:
        raise ServeError(
            "too_large", f"{name} has {count} items, at most {most} are taken", parameter=name
        )
