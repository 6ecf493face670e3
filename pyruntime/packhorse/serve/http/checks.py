"""The fields of a request's body, checked one by one, with messages that name them.

A field that is null counts as one that is left out. Every field is read, or changes no answer, or
is refused by name (`Fields.refuse_rest`): none that might change one is ignored.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeVar

from packhorse.serve.errors import ServeError

Found = TypeVar("Found")

ANY_VALUE: Final = "any"
# Field -> the values with which it changes no answer.
Effectless = Mapping[str, tuple[Any, ...] | Literal["any"]]


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

    It keeps which fields were asked for, in order to refuse all others.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self._where = where
        self._known: set[str] = set()
        self._tables: list[Fields] = []

    def wrong(self, name: str, expected: str) -> NoReturn:
        """Raises the error for a field that is not what was expected."""
        full = self.full_name(name)
        if self._values.get(name) is None:
            raise ServeError(
                "validation", f"{full} is missing, expected {expected}", parameter=full
            )
        found = shown(self._values[name])
        raise ServeError("validation", f"{full} is {found}, expected {expected}", parameter=full)

    def checked(self, find: Callable[[], Found]) -> Found:
        """Calls a function. Its ValueError becomes an error of the request."""
        try:
            return find()
        except ValueError as error:
            raise ServeError("validation", str(error)) from None

    def full_name(self, name: str) -> str:
        """The name that messages have for a field."""
        return f"{self._where}{name}"

    def get(self, name: str) -> Any:
        """The value of a field; None where it is left out."""
        self._known.add(name)
        return self._values.get(name)

    def refuse(self, name: str, hint: str = "") -> NoReturn:
        """Raises the error for a field, or a value of one, that is not supported."""
        full = self.full_name(name)
        value = self._values.get(name)
        found = f", found {json.dumps(value)}" if isinstance(value, int | float) else ""
        said = f"{full} is not supported{found}{hint and ': '}{hint}"
        raise ServeError("unsupported", said, parameter=full)

    def refuse_rest(self, effectless: Effectless) -> None:
        """Raises the error for the first field that was not asked for, unless it changes no answer.
        To be called when all fields have been read, and before anything runs."""
        for name, value in self._values.items():
            if name in self._known or value is None:
                continue
            harmless = effectless.get(self.full_name(name), ())
            if harmless is not ANY_VALUE and not any(_is_same(value, one) for one in harmless):
                self.refuse(name)
        for table in self._tables:
            table.refuse_rest(effectless)

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without `default` it must be there."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            self.wrong(name, "a text")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self.wrong(name, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, "true or false")
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str) or value not in allowed:
            self.wrong(name, " or ".join(f'"{one}"' for one in allowed))
        return value

    def integer(self, name: str, least: int, most: int | None = None) -> int | None:
        """None where it is left out."""
        value = self.get(name)
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
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(name, f"a number, {least} to {most}")
        if not least <= value <= most:
            self.wrong(name, f"a number, {least} to {most}")
        return float(value)

    def table(self, name: str) -> Fields | None:
        """An object; None where it is left out."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, "an object")
        found = Fields(value, f"{self._where}{name}.")
        self._tables.append(found)
        return found

    def ids(self, name: str) -> list[int] | None:
        """A list of token ids; None where it is left out."""
        value = self.get(name)
        if value is not None and not (isinstance(value, list) and are_ids(value)):
            self.wrong(name, "a list of token ids")
        return value

    def at_most(self, name: str, most: int) -> None:
        """Refuses a list or an object of more items, or a text of more characters, and takes
        anything else. The field does not count as read."""
        value = self._values.get(name)
        if isinstance(value, str) and len(value) > most:
            full = self.full_name(name)
            raise ServeError(
                "validation",
                f"{full} has {len(value)} characters, at most {most} are taken",
                parameter=full,
            )
        if isinstance(value, list | dict) and len(value) > most:
            full = self.full_name(name)
            raise ServeError(
                "validation",
                f"{full} has {len(value)} items, at most {most} are taken",
                parameter=full,
            )

    def texts(self, name: str, most: int) -> list[str]:
        """A list of texts that is not empty, and not longer than `most`."""
        value = self.get(name)
        if isinstance(value, list):
            check_count(self.full_name(name), len(value), most)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.wrong(name, "a list of texts")
        return value

    def inputs(self, name: str, most: int) -> Inputs:
        """A text, the ids of one, or a list of texts or of such ids."""
        value = self.get(name)
        found = Inputs.read(value)
        if found is None:
            self.wrong(name, "a text, a list of texts, ids, or a list of lists of ids")
        check_count(self.full_name(name), len(found.items), most)
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


def _is_same(value: Any, other: Any) -> bool:
    """True if two values are equal, where true is no 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def are_ids(value: list[Any]) -> bool:
    """True if all of a list are integers that a token's id may be."""
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
