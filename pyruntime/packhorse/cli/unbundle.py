"""Supports commands whose options come in bundles: a parameter is a dataclass, whose fields are
options, or annotated with a `LoadBundle`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, get_type_hints

from packhorse.cli.options import LoadBundle

Command = Callable[..., None]


def unbundle(command: Command) -> Command:
    """Returns `command` in the form that Typer reads.

    Each parameter that is annotated with a bundle is replaced by the options of the bundle, with
    their annotations and defaults. The bundles are restored when the command is called.
    """
    own: list[inspect.Parameter] = []
    options: list[inspect.Parameter] = []
    bundles: dict[str, Callable[[dict[str, Any]], Any]] = {}  # each takes its values out of all
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        bundle = parameter.annotation
        about = getattr(bundle, "__metadata__", (None,))[0]
        if isinstance(about, LoadBundle):
            options += about.parameters()
            bundles[parameter.name] = about.collect
        elif is_dataclass(bundle):
            options += _parameters(bundle)
            bundles[parameter.name] = partial(_collect, bundle)
        else:
            own.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def call(**values: Any) -> None:
        made = {name: collect(values) for name, collect in bundles.items()}
        command(**values, **made)

    signature = inspect.Signature([*own, *options])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    return call


def _parameters(bundle: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(one.name, keyword, default=one.default, annotation=hints[one.name])
        for one in fields(bundle)
    ]


def _collect(bundle: Any, values: dict[str, Any]) -> Any:
    return bundle(**{one.name: values.pop(one.name) for one in fields(bundle)})
