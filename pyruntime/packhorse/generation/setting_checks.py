"""Checks of single settings of `Sampling`: each takes what was given, and returns it in one form or
raises ValueError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packhorse.number_checks import is_int, is_number

_INT32 = 2**31
TokenSequence = tuple[int, ...]


def require(right: bool, name: str, found: object, expected: str) -> None:
    if not right:
        raise ValueError(f"{name} is {found!r:.80}, expected {expected}")


def is_token(value: object) -> bool:
    return is_int(value) and 0 <= value < _INT32  # type: ignore[operator]


def _items(name: str, given: Any, expected: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        require(False, name, given, expected)
    return list(given)


def token_ids(name: str, given: Any) -> TokenSequence:
    if isinstance(given, range) and all(map(is_token, (*given[:1], *given[-1:]))):
        return tuple(given)  # perhaps most of a vocabulary
    found = _items(name, given, "a list of token ids")
    for i, token in enumerate(found):
        require(is_token(token), f"{name}[{i}]", token, "a token id")
    return tuple(map(int, found))


def token_id_or_ids(name: str, given: Any) -> TokenSequence:
    """One token id, a list of them, or None for none."""
    if given is None:
        return ()
    return (int(given),) if is_token(given) else token_ids(name, given)


def token_sequences(name: str, given: Any) -> tuple[TokenSequence, ...]:
    return tuple(
        _sequence(f"{name}[{i}]", one)
        for i, one in enumerate(_items(name, given, "a list of lists of token ids"))
    )


def _sequence(name: str, given: Any) -> TokenSequence:
    found = token_ids(name, given)
    require(len(found) > 0, name, given, "a token id or more")
    return found


def _bias(name: str, bias: Any) -> float:
    require(is_number(bias) or bias == -math.inf, name, bias, "a number, or -inf")
    return float(bias)


def token_biases(name: str, given: Any) -> Mapping[int, float]:
    """Biases by token ids."""
    if given is None:
        return {}
    require(isinstance(given, Mapping), name, given, "a mapping of token ids to numbers")
    for token in given:
        require(is_token(token), f"{name}: key", token, "a token id")
    return {int(token): _bias(f"{name}[{token}]", bias) for token, bias in given.items()}


def sequence_biases(name: str, given: Any) -> tuple[tuple[TokenSequence, float], ...]:
    """Pairs of token ids and a bias, or a mapping of tuples to biases; of a sequence that comes
    twice the last bias counts."""
    pairs: Sequence[Any] = (
        list(given.items())
        if isinstance(given, Mapping)
        else _items(name, given, "a list of [token ids, number], or a mapping")
    )
    found: dict[TokenSequence, float] = {}
    for i, pair in enumerate(pairs):
        right = isinstance(pair, Sequence) and len(pair) == 2
        require(right, f"{name}[{i}]", pair, "[token ids, number]")
        found[_sequence(f"{name}[{i}][0]", pair[0])] = _bias(f"{name}[{i}][1]", pair[1])
    return tuple(found.items())


def length_decay(name: str, given: Any) -> tuple[int, float] | None:
    """(start, factor), or None."""
    if given is None:
        return None
    right = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2
    require(right, name, given, "(start, factor)")
    start, factor = given
    right = is_int(start) and 0 <= start < 2**62
    require(right, f"{name}[0]", start, "a whole number from 0 on")
    require(is_number(factor) and factor > 0, f"{name}[1]", factor, "a number above 0")
    return int(start), float(factor)


def attention_heads(name: str, given: Any) -> tuple[tuple[int, int], ...]:
    """Pairs of a layer and a head in it."""
    found = _items(name, given, "a list of (layer, head)")
    for i, pair in enumerate(found):
        right = isinstance(pair, Sequence) and len(pair) == 2 and all(map(is_token, pair))
        require(right, f"{name}[{i}]", pair, "(layer, head)")
    return tuple((int(layer), int(head)) for layer, head in found)
