"""Signatures that `help` and editors show, of methods that take their options in one dict."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def shows_options(call: type, like: Callable[..., Any] | None = None) -> Callable[[Method], Method]:
    """Decorator: the method's signature has the options of a TypedDict in place of `**options`.

    call  an option that is left out is None
    like  another callable, whose defaults count where it has an argument of that name
    """
    known = signature(like).parameters if like is not None else {}

    def parameter(name: str, annotation: Any) -> Parameter:
        default = known[name].default if name in known else None
        text = getattr(annotation, "__forward_arg__", annotation)
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=text)

    def decorate(method: Method) -> Method:
        own = signature(method)
        kept = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        options = [parameter(*item) for item in call.__annotations__.items()]
        shown = own.replace(parameters=[*kept, *options])
        method.__signature__ = shown  # type: ignore[attr-defined]
        return method

    return decorate


def shows_as(other: Callable[..., Any]) -> Callable[[Method], Method]:
    """Decorator: the method takes what `other` takes."""

    def decorate(method: Method) -> Method:
        shown = signature(other).replace(return_annotation=signature(method).return_annotation)
        method.__signature__ = shown  # type: ignore[attr-defined]
        return method

    return decorate
