"""Patterns of module names in adapter_config.json, matched in a time that cannot explode.

PEFT takes them as regular expressions, which Python's own matcher may follow for longer than the
world stands. Here an expression is read by Python's parser and becomes an automaton, all of whose
states are followed at once (Thompson, 1968): the time is at most the states times the characters.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as sre
    import sre_parse as parser

_MOST_LETTERS = 1000  # in a pattern
_MOST_STATES = 1000  # in an automaton
_PLAIN = re.compile(r"(?:[\w-]|\.|\\\.)+")  # names, in which a dot stands for any character

_Test = Callable[[str, int], bool]  # whether a text may go on at a place
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdecimal,
    sre.CATEGORY_NOT_DIGIT: lambda letter: not letter.isdecimal(),
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_NOT_SPACE: lambda letter: not letter.isspace(),
    sre.CATEGORY_WORD: lambda letter: letter.isalnum() or letter == "_",
    sre.CATEGORY_NOT_WORD: lambda letter: not (letter.isalnum() or letter == "_"),
}


def _at_end(text: str, place: int) -> bool:
    return place == len(text) or (place == len(text) - 1 and text[place] == "\n")


_PLACES: dict[Any, _Test] = {
    sre.AT_BEGINNING: lambda _text, place: place == 0,
    sre.AT_BEGINNING_STRING: lambda _text, place: place == 0,
    sre.AT_END: _at_end,
    sre.AT_END_STRING: lambda text, place: place == len(text),
}


class ModulePattern:
    """An expression that the name of a module, or the end of it after a dot, matches or not, as
    PEFT looks for it. Raises ValueError for what is no expression, or is not supported."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MOST_LETTERS:
            raise ValueError(f"it has {len(pattern)} characters, at most {_MOST_LETTERS} are taken")
        whole = rf"(.*\.)?({pattern})$"
        self._plain = re.compile(whole) if _PLAIN.fullmatch(pattern) else None
        # Steps of each state: where a letter leads (a test and a state), or where nothing does.
        self._letters: list[tuple[_Test, int] | None] = []
        self._free: list[list[tuple[_Test | None, int]]] = []
        if self._plain is None:
            try:
                steps = parser.parse(whole)
            except re.error as error:
                raise ValueError(str(error)) from None
            except (RecursionError, OverflowError):
                raise ValueError("it is nested too deeply") from None
            if steps.state.flags & ~re.UNICODE:
                raise ValueError("flags are not supported")
            self._begin = self._state()
            self._end = self._sequence(steps, self._begin)

    @property
    def plain(self) -> bool:
        """True where it is a name, rather than an expression."""
        return self._plain is not None

    def matches(self, name: str) -> bool:
        if self._plain is not None:
            return self._plain.match(name) is not None
        states = self._reached({self._begin}, name, 0)
        for place in range(len(name)):
            if self._end in states:
                return True
            after = set()
            for state in states:
                edge = self._letters[state]
                if edge is not None and edge[0](name, place):
                    after.add(edge[1])
            states = self._reached(after, name, place + 1)
        return self._end in states

    def _reached(self, states: set[int], text: str, place: int) -> set[int]:
        """The states, and all that they lead to without a letter."""
        rest = list(states)
        while rest:
            for test, state in self._free[rest.pop()]:
                if state not in states and (test is None or test(text, place)):
                    states.add(state)
                    rest.append(state)
        return states

    def _state(self) -> int:
        if len(self._free) >= _MOST_STATES:
            raise ValueError(f"it is an automaton of more than {_MOST_STATES} states")
        self._letters.append(None)
        self._free.append([])
        return len(self._free) - 1

    def _link(self, begin: int, end: int, test: _Test | None = None) -> None:
        self._free[begin].append((test, end))

    def _sequence(self, steps: Any, begin: int) -> int:
        """States for steps that follow each other; gives the last one."""
        for code, argument in steps:
            begin = self._step(code, argument, begin)
        return begin

    def _step(self, code: Any, argument: Any, begin: int) -> int:
        if code in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            end = self._state()
            self._letters[begin] = _letter_test(code, argument), end
            return end
        if code is sre.AT and argument in _PLACES:
            end = self._state()
            self._link(begin, end, _PLACES[argument])
            return end
        if code is sre.SUBPATTERN and not argument[1] and not argument[2]:
            return self._sequence(argument[3], begin)
        if code is sre.BRANCH:
            end = self._state()
            for choice in argument[1]:
                first = self._state()
                self._link(begin, first)
                self._link(self._sequence(choice, first), end)
            return end
        if code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, repeated = argument
            return self._repeat(least, most, repeated, begin)
        raise ValueError(f"{str(code).lower()} is not supported")

    def _repeat(self, least: int, most: Any, steps: Any, begin: int) -> int:
        for _ in range(least):
            begin = self._sequence(steps, self._next(begin))
        end = self._state()
        if most is sre.MAXREPEAT:
            first = self._next(begin)
            self._link(self._sequence(steps, self._next(first)), first)
            self._link(first, end)
            return end
        for _ in range(most - least):
            self._link(begin, end)
            begin = self._sequence(steps, self._next(begin))
        self._link(begin, end)
        return end

    def _next(self, begin: int) -> int:
        """A state of its own, to which `begin` leads: loops come back to no other step."""
        end = self._state()
        self._link(begin, end)
        return end


def _letter_test(code: Any, argument: Any) -> _Test:
    if code is sre.ANY:
        return lambda text, place: text[place] != "\n"
    if code is sre.LITERAL:
        return lambda text, place: ord(text[place]) == argument
    if code is sre.NOT_LITERAL:
        return lambda text, place: ord(text[place]) != argument
    tests = [_set_test(*one) for one in argument if one[0] is not sre.NEGATE]
    wanted = argument[0][0] is not sre.NEGATE
    return lambda text, place: any(test(text[place]) for test in tests) is wanted


def _set_test(code: Any, argument: Any) -> Callable[[str], bool]:
    if code is sre.RANGE:
        first, last = argument
        return lambda letter: first <= ord(letter) <= last
    if code is sre.LITERAL:
        return lambda letter: ord(letter) == argument
    if code is sre.CATEGORY:
        return _CATEGORIES[argument]
    raise ValueError(f"{str(code).lower()} is not supported")
