"""Fields of dataclasses that say all about an option: how it is checked and read, and what
docstrings, commands, settings and schemas tell of it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from packhorse.load_arguments import check_count

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """Description of an option, beside the type and the default of its field.

    doc      what it does, for docstrings
    help     the same for commands and settings of the server; "": they do not have it
    group    heading in the help
    unit     what the number counts
    metavar  how its value is called in the help
    least    smallest number that commands take
    setting  its name among the settings of the server; "": that of the field
    check    takes its name and what was given, returns it in one form or raises ValueError
    read     makes the value of what people write as text
    suits    the method of `TextModel` that a model must have for it; "": all models have use for it
    refusal  what a session that does not generate says against it; "": it is not refused
    reads    decides what the model is, not how it runs: an argument of `inspect_checkpoint`, too
    speed    changes where and how fast the model runs, and no results
    """

    doc: str
    help: str = ""
    group: str = ""
    unit: str = ""
    metavar: str | None = None
    least: int | None = None
    setting: str = ""
    check: Callable[[str, Any], Any] | None = None
    read: Callable[[str], Any] | None = None
    suits: str = ""
    refusal: str = ""
    reads: bool = False
    speed: bool = False

    def from_text(self, given: Any) -> Any:
        """The value of what people write: a text, or several."""
        text = ",".join(given) if isinstance(given, list | tuple) else given
        return self.read(text) if self.read is not None and isinstance(text, str) else text


def option(default: Any, doc: str, help: str = "", **more: Any) -> Any:
    return field(default=default, metadata={"option": Option(doc, help, **more)})


def count(default: int | None, unit: str, doc: str, help: str = "", **more: Any) -> Any:
    more = {"metavar": "N", "least": 1, **more}
    return option(default, doc, help, unit=unit, check=check_count, **more)


def said(one: Field[Any]) -> Option:
    """The option that a field describes; an empty one where it describes none."""
    found: Option = one.metadata.get("option", _NO_OPTION)
    return found


_NO_OPTION = Option("")


def kinds_of(hint: Any) -> set[type]:
    """The types of the values of an option."""
    return {one if isinstance(one, type) else type(one) for one in _parts(hint)}


def kind_of(hint: Any) -> type:
    """The type in which people write an option."""
    return next(kind for kind in (str, bool, float, int) if kind in kinds_of(hint))


def choices_of(hint: Any) -> tuple[str, ...]:
    """The names of which an option is one; empty where it may be something else."""
    parts = [one for one in _parts(hint) if one is not type(None)]
    named = all(isinstance(one, str) for one in parts) and not takes_several(hint)
    return tuple(parts) if named else ()


def takes_several(hint: Any) -> bool:
    """True for an option that may be a list of names."""
    return any(get_origin(one) is Sequence for one in get_args(hint))


def _parts(hint: Any) -> list[Any]:
    """The members of unions, and the values of literals."""
    members = get_args(hint)
    if hint is type(None) or not members:
        return [hint]
    return [part for one in members for part in _parts(one)]


@cache
def hints_of(options: type) -> Mapping[str, Any]:
    """The types of the options by their names."""
    return get_type_hints(options)


def takes_options(options: type) -> Callable[[Function], Function]:
    """Decorator of a function with `**options`: its signature has a parameter for each field, and
    its docstring the text of each in place of a line "{options}". Other names are a TypeError."""

    def decorate(function: Function) -> Function:
        own = signature(function)
        first = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        rest = [one for one in fields(options) if one.name not in own.parameters]
        keyword = Parameter.KEYWORD_ONLY
        added = [
            Parameter(one.name, keyword, default=one.default, annotation=one.type) for one in rest
        ]
        known = {one.name for one in first} | {one.name for one in rest}

        @wraps(function)
        def checked(*given: Any, **named: Any) -> Any:
            for name in named:
                if name not in known:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    )
            return function(*given, **named)

        last = [first.pop()] if first[-1].kind is keyword else []  # `progress`
        shown = own.replace(parameters=[*first, *added, *last])
        checked.__signature__ = shown  # type: ignore[attr-defined]
        checked.__doc__ = with_options(function.__doc__ or "", options)
        return cast(Function, checked)

    return decorate


def with_options(docstring: str, options: type) -> str:
    """A docstring with the texts of options in place of its line "{options}"."""
    before, mark, after = docstring.partition("{options}")
    if not mark:
        return docstring
    indent = before[before.rfind("\n") + 1 :]
    base = options.__base__
    inherited = [one.name for one in fields(base)] if is_dataclass(base) else []
    texts = [
        textwrap.fill(
            said(one).doc,
            100,
            initial_indent=f"{indent}{one.name:<13}  ",
            subsequent_indent=indent + " " * 15,
        )
        for one in fields(options)
        if one.name not in inherited
    ]
    return before.removesuffix(indent) + "\n".join(texts) + after
