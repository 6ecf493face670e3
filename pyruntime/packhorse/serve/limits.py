"""Sizes of what one request may ask for, by the names of its fields.

Far above what anybody needs, and so small that no other request has to wait for it.
"""

from __future__ import annotations

from packhorse.serve.checks import Fields
from packhorse.serve.errors import ServeError

# Most items of lists and objects by which a text is generated.
_ITEMS = {
    "stop": 16,
    "stop_token_ids": 1024,
    "bad_words": 1024,
    "logit_bias": 4096,
    "choices": 4096,
    "guided_choice": 4096,
    "allowed_token_ids": 200_000,
    "tools": 1024,
    "documents": 10_000,
}
MOST_LETTERS = 1024  # of one stop string, or of one word
_MOST_WORD_LETTERS = 16_384  # of all words of a list together


def check_sizes(fields: Fields) -> None:
    """Raises ServeError for a field with more items than are taken."""
    for name, most in _ITEMS.items():
        fields.at_most(name, most)
    for name in ("stop", "bad_words"):
        value = fields.get(name)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and len(text) > MOST_LETTERS:
                raise ServeError(
                    "validation",
                    f"{name} has a text of {len(text)} characters, at most {MOST_LETTERS} are "
                    "taken",
                    parameter=name,
                )


def check_words(name: str, words: list[str], most: int) -> None:
    """Raises ServeError for more words, or longer ones, than are taken."""
    if len(words) > most:
        raise ServeError(
            "validation", f"{name} has {len(words)} items, at most {most} are taken", parameter=name
        )
    letters = sum(map(len, words))
    if letters > _MOST_WORD_LETTERS:
        raise ServeError(
            "validation",
            f"{name} has {letters} characters, at most {_MOST_WORD_LETTERS} are taken",
            parameter=name,
        )


def check_sequences(prompts: int, n: int, most: int) -> None:
    """Raises ServeError for more texts of one request than are taken."""
    if prompts * n > most:
        raise ServeError(
            "too_large",
            f"{prompts} prompts times n = {n} are {prompts * n} texts, at most {most} are taken",
            parameter="n",
        )
