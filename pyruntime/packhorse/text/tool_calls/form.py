"""Grammars of texts that are calls of given functions, in the language of Lark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_COMBINED = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "not", "if")
# Spaces as templates write them in JSON, so that a model finds calls of the form that it knows.
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar(str):
    """A grammar of this package's own, which is taken as it is."""

    __slots__ = ()


class CallForm:
    """The calls that may be made, for the grammars of all families.

    several  whether there may be several calls
    """

    def __init__(
        self,
        functions: Mapping[str, Mapping[str, Any] | None],
        several: bool,
        id_of: Callable[[str], int | None],
    ) -> None:
        """`functions`: names, and JSON schemas of the parameters; `id_of`: a token's id by its
        text."""
        self._functions = functions
        self.several = several
        self._id_of = id_of
        self._rules: list[str] = []

    def text(self, literal: str) -> str:
        """A literal, which may be a token of its own."""
        token = self._id_of(literal)
        return json.dumps(literal, ensure_ascii=False) if token is None else f"<[{token}]>"

    def objects(self, arguments: str) -> str:
        """Grammar of a call as an object of JSON with a name and, under this key, its arguments."""
        return self._any(
            [
                self._json(
                    {
                        "type": "object",
                        "properties": {
                            "name": {"const": name},
                            arguments: _moved(_closed(parameters), f"#/properties/{arguments}"),
                        },
                        "required": ["name", arguments],
                        "additionalProperties": False,
                    }
                )
                for name, parameters in self._functions.items()
            ]
        )

    def named(self, between: str) -> str:
        """Grammar of a call as a name and, after a literal, its arguments."""
        return self._any(
            [
                f"{json.dumps(name)} {self.text(between)} {self._json(_closed(parameters))}"
                for name, parameters in self._functions.items()
            ]
        )

    def repeated(self, call: str, separator: str) -> str:
        """A call or, where there may be several, calls with a separator between them."""
        between = f"{json.dumps(separator)} " if separator else ""
        return f"{call} ({between}{call})*" if self.several else call

    def whole(self, start: str) -> Grammar:
        """The grammar that begins with a rule and has those that were made for it."""
        return Grammar("\n".join([f"start: {start}", *self._rules]))

    def _any(self, choices: Sequence[str]) -> str:
        return self._rule(" | ".join(choices))

    def _json(self, schema: Mapping[str, Any]) -> str:
        return self._rule(f"%json {json.dumps({**schema, 'x-guidance': _SPACES})}")

    def _rule(self, body: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name


def _closed(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of arguments that has no more than the properties that it names, unless it says
    otherwise: small models would go on with others of their own."""
    found = {"type": "object", "properties": {}, **(parameters or {})}
    if not any(name in found for name in _COMBINED):
        found.setdefault("additionalProperties", False)
    return found


def _moved(schema: Any, to: str) -> Any:
    """A schema inside of another one, so that references within it find their place."""
    if isinstance(schema, Mapping):
        return {
            key: to + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, to)
            for key, value in schema.items()
        }
    return [_moved(one, to) for one in schema] if isinstance(schema, list) else schema
