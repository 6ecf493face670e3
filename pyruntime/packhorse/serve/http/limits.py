"""Sizes of what one request may ask for, by the names of its fields.

Far above what anybody needs, and so small that no other request has to wait for it.
"""

from __future__ import annotations

from packhorse.serve.errors import ServeError
from packhorse.serve.http.checks import Fields

# Most items of lists and objects, and characters of texts, by which a text is generated.
_MOST = {
    "stop_token_ids": 1024,
    "bad_words": 1024,
    "logit_bias": 4096,
    "choices": 4096,
    "guided_choice": 4096,
    "allowed_token_ids": 200_000,
    "tools": 1024,
    "documents": 10_000,
    "chat_template": 32_768,
}
_MOST_STOPS = 16
_MOST_STOP_LETTERS = 1024  # in one stop string
_MOST_WORD_LETTERS = 16_384  # in all words of a list together


def check_sizes(fields: Fields) -> None:
    """Raises ServeError for a field with more than is taken."""
    for name, most in _MOST.items():
        fields.at_most(name, most)


def check_stops(stops: list[str]) -> None:
    """Raises ServeError for more stop strings, or longer ones, than are taken."""
    if len(stops) > _MOST_STOPS:
        raise ServeError(
            "validation",
            f"stop has {len(stops)} items, at most {_MOST_STOPS} are taken",
            parameter="stop",
        )
    longest = max(map(len, stops), default=0)
    if longest > _MOST_STOP_LETTERS:
        raise ServeError(
            "validation",
            f"stop has a text of {longest} characters, at most {_MOST_STOP_LETTERS} are taken",
            parameter="stop",
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
