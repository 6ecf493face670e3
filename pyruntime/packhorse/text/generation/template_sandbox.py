"""Chat templates as programs that end: with limits of steps, of time and of what they make.

A template comes with a model, or with a request, and may be written to do harm. The sandbox of
Jinja keeps it away from the process; nothing in it keeps a template from running for ever, or from
filling the memory. So every statement counts as a step, and whatever makes a text or a list larger
than what it is made of is looked at before it is done.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jinja2 import TemplateRuntimeError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from packhorse.text.giving_up import checkpoint

MOST_STEPS = 2_000_000
MOST_SECONDS = 5.0
MOST_CHARACTERS = 16_000_000  # in a prompt, or in any text on the way to it
MOST_ITEMS = 500_000  # in a list, with all that is in it
MOST_SOURCE = 100_000  # characters of a template
_MOST_BITS = 10_000  # in an integer
_LOOK = 256  # steps between two looks at the clock
# Formats that pad what they write widely, or as widely as an argument says.
_WIDTH = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")

_REPEATING = {"Namespace", "batch", "dict", "fromkeys", "slice"}  # may hold a thing many times
_OF_ITEMS = {
    *("batch", "groupby", "list", "max", "min", "random", "reverse", "slice", "sort", "sum"),
    "unique",
}
# Filters that no template for a conversation needs, and that would need limits of their own.
_LEFT_OUT = ("filesizeformat", "pprint", "urlize")


class LimitError(TemplateRuntimeError):
    """A template asks for more than a conversation can need."""


class _Budget:
    def __init__(self) -> None:
        self.steps = 0
        self.end = time.monotonic() + MOST_SECONDS


def _weigh(value: Any) -> tuple[int, int]:
    """(items, characters) of a value and all that is in it. Raises LimitError for too much, as soon
    as it is: things within things may be far more than their number."""
    items = characters = 0
    rest = [value]
    while rest:
        one = rest.pop()
        items += 1
        if isinstance(one, str | bytes):
            characters += len(one)
        elif isinstance(one, Mapping):
            rest.extend(one.keys())
            rest.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            rest.extend(one)
        elif isinstance(one, Namespace):
            if items > 1:
                raise LimitError("a namespace stands within another value")
            rest.extend(dict(one._Namespace__attrs).values())
        if items + len(rest) > MOST_ITEMS:
            raise LimitError(f"it makes a value of more than {MOST_ITEMS} items")
        if characters > MOST_CHARACTERS:
            raise LimitError(f"it makes a value of more than {MOST_CHARACTERS} characters")
    return items, characters


def _size(value: Any) -> int:
    """The size that a value counts for in what is made of it."""
    return abs(value) if isinstance(value, int) else sum(_weigh(value))


def _sizes(values: Iterable[Any]) -> int:
    return sum(map(_size, values))


def _of_format(text: Any, arguments: list[Any]) -> int:
    if _WIDTH.search(str(text)):
        raise LimitError("a format has a width of five digits, or one that an argument says")
    places = str(text).count("%") + str(text).count("{")
    return len(str(text)) + places * _sizes(arguments)


def _of_replacing(text: Any, arguments: list[Any]) -> int:
    old, new = map(str, arguments[:2])
    return len(str(text)) + str(text).count(old) * len(new)


def _of_joining(separator: Any, items: Any) -> int:
    count, characters = _weigh(items)
    return characters + count * len(str(separator))


def _padded(text: Any, arguments: list[Any]) -> int:
    return _size(text) + _sizes(arguments)


def _multiplied(text: Any, arguments: list[Any]) -> int:
    return _size(text) * (1 + _sizes(arguments))


# The most that filters, and methods of texts and numbers, may make of a value and their arguments,
# where it is more than they are given.
_BOUNDS: dict[str, Callable[[Any, list[Any]], int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice"), _padded),
    **dict.fromkeys(("translate", "wordwrap", "tojson"), _multiplied),
    "expandtabs": lambda text, width: len(text) + text.count("\t") * _sizes(width),
    "format": _of_format,
    "indent": lambda text, width: len(str(text)) + (str(text).count("\n") + 1) * _sizes(width),
    "replace": _of_replacing,
    "round": lambda _number, digits: 10_000 * _sizes(digits),  # by a power of ten
}


def _check_bound(name: str, value: Any, arguments: list[Any]) -> None:
    """Raises LimitError where a text that is to be made may be too long."""
    bound = _BOUNDS.get(name)
    if bound is not None and arguments and bound(value, arguments) > MOST_CHARACTERS:
        raise LimitError(f"{name} may make a text of more than {MOST_CHARACTERS} characters")


def _check_joining(separator: Any, items: Any) -> None:
    if _of_joining(separator, items) > MOST_CHARACTERS:
        raise LimitError(f"it makes a text of more than {MOST_CHARACTERS} characters")


def _check_made(value: Any) -> Any:
    """Gives back a value that has been made. Raises LimitError for too much."""
    if isinstance(value, str | bytes) and len(value) > MOST_CHARACTERS:
        raise LimitError(f"it makes a text of more than {MOST_CHARACTERS} characters")
    if isinstance(value, list | tuple | dict) and len(value) > MOST_ITEMS:
        raise LimitError(f"it makes a value of more than {MOST_ITEMS} items")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise LimitError(f"it makes a number of more than {_MOST_BITS} bits")
    return value


class _Generator(CodeGenerator):
    """Python of a template, with a step before each statement."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        super().blockvisit(self._with_steps(nodes), frame)

    def _with_steps(self, found: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
        for node in found:
            self.writeline("environment.step()")
            yield node

    def _checked(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        self.write("environment.weighed(")
        visit(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._checked(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._checked(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._checked(super().visit_Dict, node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(environment.shown, (")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write(")))")


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Any number of threads may render its templates, each within `budget`."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *extensions: type) -> None:
        self._local = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[*extensions, loopcontrols],
            finalize=self.shown,
        )
        del self.globals["lipsum"]
        for name in _LEFT_OUT:
            del self.filters[name]

    def limit_filters(self) -> None:
        """Limits all filters. To be called when the last one has been added."""
        for name, filter_ in list(self.filters.items()):
            self.filters[name] = self._limited(name, filter_)

    @contextmanager
    def budget(self) -> Iterator[None]:
        """Limits the steps and the time of templates in this block, on this thread."""
        self._local.budget = _Budget()
        try:
            yield
        finally:
            del self._local.budget

    def step(self) -> None:
        """Stands before everything that a template does. Raises LimitError, GaveUpError."""
        budget = self._local.budget
        budget.steps += 1
        if budget.steps % _LOOK == 0:
            checkpoint()
            if budget.steps > MOST_STEPS:
                raise LimitError(f"it takes more than {MOST_STEPS} steps")
            if time.monotonic() > budget.end:
                raise LimitError(f"it takes more than {MOST_SECONDS:g} s")

    def weighed(self, value: Any) -> Any:
        """A list, tuple or mapping that has been made, as it is."""
        _weigh(value)
        return value

    def shown(self, value: Any) -> Any:
        """The text of a value that a template writes."""
        self.step()
        if isinstance(value, Namespace):
            raise LimitError("a namespace is no text")
        return value if isinstance(value, str) else str(value)

    def concat(self, texts: Iterable[str]) -> str:
        """Joins the texts that a template, a macro or a block makes."""
        found: list[str] = []
        size = 0
        for text in texts:
            size += len(text)
            if size > MOST_CHARACTERS:
                raise LimitError(f"it makes a text of more than {MOST_CHARACTERS} characters")
            found.append(text)
        return "".join(found)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.step()
        if operator == "%" and isinstance(left, str):
            _check_bound("format", left, [right])
        elif isinstance(left, int) and isinstance(right, int):
            if operator == "**" and left.bit_length() * right > _MOST_BITS:
                raise LimitError(f"it makes a number of more than {_MOST_BITS} bits")
        elif operator == "*" and _size(left) * _size(right) > MOST_CHARACTERS:
            raise LimitError(f"it makes a text of more than {MOST_CHARACTERS} characters")
        made = super().call_binop(context, operator, left, right)
        return self.weighed(made) if isinstance(made, list | tuple) else _check_made(made)

    def wrap_str_format(self, value: Any) -> Any:
        write = super().wrap_str_format(value)
        if write is None:
            return None

        @wraps(write)
        def checked(*arguments: Any, **named: Any) -> str:
            _check_bound("format", value.__self__, [*arguments, *named.values()])
            return str(write(*arguments, **named))

        return checked

    def call(
        __self,  # noqa: N805
        __context: Context,
        __obj: Any,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        __self.step()
        name = getattr(__obj, "__name__", "")
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | bytes | int):
            if name == "join" and arguments:
                arguments = (list(arguments[0]), *arguments[1:])
                _check_joining(owner, arguments[0])
            else:
                _check_bound(name, owner, [*arguments, *named.values()])
        made = super().call(__context, __obj, *arguments, **named)
        return __self.weighed(made) if name in _REPEATING else _check_made(made)

    def _limited(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        passed = int(hasattr(filter_, "jinja_pass_arg"))  # a context or environment comes first

        @wraps(filter_)
        def limited(*arguments: Any, **named: Any) -> Any:
            self.step()
            value, *others = arguments[passed:]
            others += named.values()
            if isinstance(value, Namespace) and name not in ("attr", "d", "default"):
                raise LimitError("a namespace is no text")
            if isinstance(value, str) and name in _OF_ITEMS and len(value) > MOST_ITEMS:
                raise LimitError(f"it makes a value of more than {MOST_ITEMS} items")
            if name == "int" and isinstance(value, str) and len(value) > _MOST_BITS:
                raise LimitError(f"it makes a number of more than {_MOST_BITS} digits")
            if name == "join" and not isinstance(value, str):
                value = list(value)
                arguments = (*arguments[:passed], value, *arguments[passed + 1 :])
                _check_joining(others[0] if others else "", value)
            else:
                _check_bound(name, value, others)
            made = filter_(*arguments, **named)
            if isinstance(made, Iterator) and name in _REPEATING:
                made = list(made)
            return self.weighed(made) if name in _REPEATING else _check_made(made)

        return limited
