"""Texts of any source to what a task takes: texts, pairs, queries with their documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Entry = str | Mapping[str, Any]
Query = tuple[str, list[str]]

_DOCUMENTS = 20  # documents of a query that is made of texts
_MOST = 200  # characters of a query or question that is made of a text


def _fields(entry: Entry, number: int, names: Sequence[str]) -> list[Any]:
    """The named fields of an entry, None for those that it lacks. A str is the first field."""
    if isinstance(entry, str):
        return [entry, *[None] * (len(names) - 1)]
    if not isinstance(entry, Mapping):
        raise ValueError(f"texts[{number}] is {entry!r:.80}, expected a str or a mapping")
    if names[0] not in entry:
        found = ", ".join(map(repr, entry)) or "nothing"
        raise ValueError(f"texts[{number}] has {found:.80}, expected {names[0]!r}")
    return [entry.get(name) for name in names]


def _checked(value: object, number: int, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"texts[{number}]: {name} is {value!r:.80}, expected a str")
    return value


def plain_texts(entries: Sequence[Entry]) -> list[str]:
    """Texts of entries that are str, or objects with "text"."""
    return [_checked(_fields(entry, i, ["text"])[0], i, "text") for i, entry in enumerate(entries)]


def texts_and_pairs(entries: Sequence[Entry]) -> list[str | tuple[str, str]]:
    """Texts and pairs of entries that are str, or objects with "text" and perhaps "text_pair"."""
    found: list[str | tuple[str, str]] = []
    for i, entry in enumerate(entries):
        text, other = _fields(entry, i, ["text", "text_pair"])
        text = _checked(text, i, "text")
        found.append(text if other is None else (text, _checked(other, i, "text_pair")))
    return found


def _beginning(text: str) -> str:
    """The first line, as a query or question."""
    return text.strip().partition("\n")[0][:_MOST]


def questions(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Pairs of (question, context), from objects with both. A str is the context, and its first
    line the question."""
    found = []
    for i, entry in enumerate(entries):
        if isinstance(entry, str):
            found.append((_beginning(entry), entry))
        else:
            question, context = _fields(entry, i, ["question", "context"])
            found.append((_checked(question, i, "question"), _checked(context, i, "context")))
    return found


def queries(entries: Sequence[Entry]) -> list[Query]:
    """Pairs of (query, documents), from objects with both. Of str, 20 at a time are the documents,
    and the first line of the first of them is the query; one that is left over alone is not
    used."""
    if all(isinstance(entry, str) for entry in entries):
        texts = plain_texts(entries)
        if len(texts) < 2:
            raise ValueError(f"{len(texts)} texts, expected at least 2: documents of a query")
        parts = [texts[i : i + _DOCUMENTS] for i in range(0, len(texts), _DOCUMENTS)]
        return [(_beginning(part[0]), part) for part in parts if len(part) > 1]
    found = []
    for i, entry in enumerate(entries):
        if isinstance(entry, str):
            raise ValueError(f"texts[{i}] is a text, others are queries: expected one kind")
        query, documents = _fields(entry, i, ["query", "documents"])
        if not isinstance(documents, list) or len(documents) < 2:
            raise ValueError(
                f"texts[{i}]: documents is {documents!r:.80}, expected a list of at least 2 texts"
            )
        texts = [_checked(one, i, "documents") for one in documents]
        found.append((_checked(query, i, "query"), texts))
    return found
