"""JSON schemas of tools, made of Python functions by the rules of transformers 5: types from the
signature, descriptions from a docstring of Google's style."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn

Schema = dict[str, Any]
Tool = Callable[..., Any] | Mapping[str, Any]
_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES: dict[Any, Schema] = {
    **{kind: {"type": name} for kind, name in _SCALARS.items()},
    Any: {},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
}
_SECTIONS = "Args:|Returns:|Raises:"
_ARGUMENT = re.compile(r"([ \t]*)(\w+)(?:[ \t]*\([^()\n]*\))?:(.*)")  # "name (type): description"
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def tool_schemas(tools: Any) -> list[Schema]:
    """Tools as chat templates take them: mappings as they are, functions as their schemas.

    Raises ValueError for what is neither, and for a function whose signature or docstring does not
    say enough.
    """
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise ValueError(f"tools is {tools!r:.80}, expected a list of functions or JSON schemas")
    return [_schema(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _schema(tool: Any, name: str) -> Schema:
    if isinstance(tool, Mapping):
        return dict(tool)
    if isinstance(tool, type) or not callable(tool):
        raise ValueError(f"{name} is {tool!r:.80}, expected a function or a JSON schema (a dict)")
    return {"type": "function", "function": _Described(tool, name).schema()}


class _Described:
    """One function. `name`: what messages call it."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._called = getattr(function, "__name__", type(function).__name__)
        self._where = f"{name}, the function {self._called},"
        self._function, doc = function, inspect.getdoc(function)
        if not inspect.isroutine(function):  # an object, whose class may have the docstring
            self._function = function.__call__  # type: ignore[operator]
            doc = self._function.__doc__ or doc
        self._doc = inspect.cleandoc(doc or "").strip()

    def _refuse(self, what: str, hint: str = "") -> NoReturn:
        raise ValueError(f"{self._where} {what}{hint and ': '}{hint}")

    def schema(self) -> Schema:
        doc = self._doc
        if not doc:
            self._refuse("has no docstring, expected one that describes it and its arguments")
        properties, required, returned = self._signature()
        descriptions = _arguments(doc)
        for argument, found in properties.items():
            if argument not in descriptions:
                self._refuse(
                    f"has no description of its argument {argument!r} in its docstring",
                    f'expected "Args:" and below it "{argument}: ..."',
                )
            found.update(self._described(argument, descriptions[argument]))
        parameters = {"type": "object", "properties": properties}
        if required:
            parameters["required"] = required
        result = {
            "name": self._called,
            "description": re.split(_SECTIONS, doc, maxsplit=1)[0].strip(),
            "parameters": parameters,
        }
        if returned is not None:
            said = re.search(r"\n\s*Returns:\n\s*(.*?)\s*(?:Raises:|\Z)", doc, re.DOTALL)
            result["return"] = {**returned, "description": said[1]} if said else returned
        return result

    def _signature(self) -> tuple[dict[str, Schema], list[str], Schema | None]:
        """(schemas of the arguments, names of those without a default, schema of the result)"""
        try:
            parameters = dict(inspect.signature(self._function).parameters)
            hints = typing.get_type_hints(self._function)
        except (NameError, TypeError, ValueError, AttributeError) as error:
            self._refuse("has a signature that cannot be read", str(error))
        first = next(iter(parameters.values()), None)
        if first is not None and first.name in ("self", "cls") and first.name not in hints:
            del parameters[first.name]
        properties = {}
        for name in parameters:
            if name not in hints:
                self._refuse(f"has no type hint for its argument {name!r}")
            properties[name] = self._of_hint(name, hints[name])
        required = [one.name for one in parameters.values() if one.default is one.empty]
        try:
            returned = _of_hint(hints["return"]) if "return" in hints else None
        except ValueError:
            returned = None  # a model never writes it
        return properties, required, returned

    def _of_hint(self, name: str, hint: Any) -> Schema:
        try:
            return _of_hint(hint)
        except ValueError as error:
            self._refuse(f"has the type hint {hint!r:.80} for its argument {name!r}", str(error))

    def _described(self, argument: str, description: str) -> Schema:
        choices = _CHOICES.search(description)
        if choices is None:
            return {"description": description}
        try:
            values = json.loads(choices[1])
        except ValueError:
            values = None
        if not isinstance(values, list):
            self._refuse(
                f"has choices {choices[1]!r:.80} for its argument {argument!r}",
                "expected a list as JSON writes it",
            )
        return {
            "enum": [value.strip() if isinstance(value, str) else value for value in values],
            "description": description[: choices.start()].strip(),
        }


def _of_hint(hint: Any) -> Schema:
    """The schema of a type hint. Raises ValueError where there is none."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _of_values([member.value for member in hint])
        try:
            return dict(_TYPES[hint])
        except (KeyError, TypeError):
            raise ValueError(
                "expected int, float, str, bool, list, tuple, dict, Any, a Literal, an Enum, or an "
                "Optional or Union of these"
            ) from None
    if origin in (typing.Union, types.UnionType):
        found = _of_union([_of_hint(one) for one in inner if one is not type(None)])
        return {**found, "nullable": True} if type(None) in inner else found
    if origin is typing.Literal:
        return _of_values(list(inner))
    if origin is list:
        return {"type": "array", **({"items": _of_hint(inner[0])} if inner else {})}
    if origin is tuple:
        if len(inner) == 1 or ... in inner:
            raise ValueError("tuples have two types or more, and no ...: a list has any length")
        return {"type": "array", **({"prefixItems": [*map(_of_hint, inner)]} if inner else {})}
    if origin is dict:
        more = {"additionalProperties": _of_hint(inner[1])} if len(inner) == 2 else {}
        return {"type": "object", **more}
    raise ValueError(f"{origin!r:.80} has no JSON schema")


def _of_union(schemas: list[Schema]) -> Schema:
    if len(schemas) == 1:
        return schemas[0]
    if any(one.keys() != {"type"} for one in schemas):
        return {"anyOf": schemas}
    names = sorted({one["type"] for one in schemas})
    return {"type": names[0] if len(names) == 1 else names}


def _of_values(values: list[Any]) -> Schema:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise ValueError(f"values are {values!r:.80}, expected int, float, str, bool or None")
    names = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _arguments(doc: str) -> dict[str, str]:
    """Descriptions of a docstring's section "Args:", each in one line.

    An argument begins where a line has a name and a colon, unless the line is indented deeper than
    the argument before it.
    """
    section = re.search(r"\n\s*Args:\n(.*?)(?:Returns:|Raises:|\Z)", doc, re.DOTALL)
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    indent = ""
    for line in section[1].splitlines() if section else ():
        begins = _ARGUMENT.fullmatch(line)
        deeper = lines is not None and line.startswith((f"{indent} ", f"{indent}\t"))
        if begins and not deeper:
            indent = begins[1]
            lines = found[begins[2]] = [begins[3]]
        elif lines is not None:
            lines.append(line)
    return {name: " ".join(filter(None, map(str.strip, text))) for name, text in found.items()}
