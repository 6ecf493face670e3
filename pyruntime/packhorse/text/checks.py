"""Checks of texts and their tokens. Messages name the number of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from packhorse.packing import Int32Array
from packhorse.text.foreign_errors import raised_in

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Encoded = TypeVar("Encoded")
Text = str | tuple[str, str]


def as_texts(texts: Any, name: str = "texts") -> Iterable[Any]:
    """A single text in a list; several as they are. Raises ValueError for what is neither: an
    iteration over a dict or a set would give keys, or texts in no order. `name`: for messages."""
    if isinstance(texts, str):
        return [texts]
    unfit = (Mapping, Set, bytes, bytearray, memoryview)
    if isinstance(texts, unfit) or not isinstance(texts, Iterable):
        raise ValueError(
            f"{name} is {texts!r:.80} ({type(texts).__name__}), expected a text, or texts in an "
            "order, such as a list"
        )
    return texts


def check_text(text: object, i: int, prompt: str, pairs: bool, name: str = "texts") -> Text:
    """The text or, where `pairs` may come, pair of texts, after the prompt. `name`: for messages.
    Raises ValueError."""
    if isinstance(text, str):
        return prompt + text
    if pairs and isinstance(text, list | tuple) and len(text) == 2:
        one, two = text
        if isinstance(one, str) and isinstance(two, str):
            return prompt + one, two
    expected = "a text or a pair of texts" if pairs else "a text"
    raise ValueError(f"{name}[{i}] is {text!r:.80}, expected {expected}")


def check_ids(
    tokenizer: Tokenizer, rows: Sequence[Int32Array], table: int | None, first: int
) -> None:
    """Raises ValueError for an id beyond the model's table of so many entries."""
    if table is not None and (found := _first_beyond(rows, table)):
        i, largest = found
        raise ValueError(
            f"texts[{first + i}] has token {tokenizer.id_to_token(largest)!r} (id {largest}); the "
            f"model's table has {table} entries: tokenizer and weights do not fit each other"
        )


def _first_beyond(rows: Sequence[Int32Array], count: int) -> tuple[int, int] | None:
    """The number of the first row that holds `count` or more, and what it holds at most."""
    if len(rows) == 1 and max(rows[0].tolist(), default=0) < count:  # faster than NumPy
        return None
    if not rows or np.concatenate(rows).max(initial=0) < count:
        return None
    sizes = [int(row.max(initial=0)) for row in rows]
    return next((i, size) for i, size in enumerate(sizes) if size >= count)


def check_types(rows: Sequence[Int32Array], count: int, first: int) -> None:
    """Raises ValueError for a type beyond the model's `count` of them; 0: it takes none."""
    if count and (found := _first_beyond(rows, count)):
        i, largest = found
        raise ValueError(
            f"texts[{first + i}] has tokens of type {largest}; the model has types 0 to "
            f"{count - 1}: tokenizer and weights do not fit each other"
        )


def check_size(i: int, size: int, max_length: int) -> None:
    if size > max_length:
        raise ValueError(
            f"texts[{i}] has {size} tokens, max_length is {max_length}, and truncation=False"
        )


def encode_rows(
    encode: Callable[[list[Text]], list[Encoded]], rows: Sequence[Text], first: int, how: str
) -> list[Encoded]:
    """Calls `encode` with `rows`. Raises ValueError naming the row that cannot be encoded."""
    try:
        return encode(list(rows))
    except BaseException as error:  # the package raises nothing narrower
        if isinstance(error, TypeError | UnicodeEncodeError):
            for i, row in enumerate(rows, first):
                for text in (row,) if isinstance(row, str) else row:
                    check_characters(text, f"texts[{i}]")
        if not raised_in(error, "tokenizers"):
            raise
        number = first + next((i for i, row in enumerate(rows) if _fails(encode, row)), 0)
        raise ValueError(f"texts[{number}]: {error} ({how})") from None


def encode_whole(tokenizer: Tokenizer, text: str, *, special: bool) -> Encoding:
    """Tokenizes a text as a whole, not cut, with the tokens that the tokenizer adds or without.
    Raises ValueError."""
    encode = partial(tokenizer.encode_batch, add_special_tokens=special)
    return encode_rows(encode, [text], 0, "whole")[0]


@contextmanager
def errors_of_tokenizers(where: str) -> Iterator[None]:
    """Makes a ValueError that begins with `where` of what the package tokenizers raises, and of
    what is wrong with its file."""
    try:
        yield
    except BaseException as error:
        if not raised_in(error, "tokenizers", "json"):
            raise
        raise ValueError(f"{where}: {error}") from None


def check_characters(text: str, name: str) -> None:
    """Raises ValueError, which names the text, for one that has no form in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has a lone surrogate, {text[error.start]!r}, at position {error.start}: half "
            "of a character, of a text that was cut or decoded wrongly"
        ) from None


def _fails(encode: Callable[[list[Text]], object], text: Text) -> bool:
    try:
        encode([text])
    except BaseException as error:
        if not raised_in(error, "tokenizers"):
            raise
        return True
    return False
