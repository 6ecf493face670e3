"""Supports commands whose options come in bundles: a parameter is a dataclass, and its fields are
options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

Command = Callable[..., None]


def unbundle(command: Command) -> Command:
    """Returns `command` in the form that Typer reads.

    Each parameter that is annotated with a dataclass is replaced by the fields of the dataclass,
    with their annotations and defaults. The bundles are restored when the command is called.
    """
    own: list[inspect.Parameter] = []
    bundles: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            bundles[parameter.name] = parameter.annotation
        else:
            own.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    options = []
    for bundle in bundles.values():
        hints = get_type_hints(bundle, include_extras=True)
        options += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(bundle)
        ]

    def call(**values: Any) -> None:
        made = {
            name: bundle(**{field.name: values.pop(field.name) for field in fields(bundle)})
            for name, bundle in bundles.items()
        }
        command(**values, **made)

    signature = inspect.Signature([*own, *options])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call
