"""Cuts of texts that are too long, by what a request says."""

from __future__ import annotations

from typing import NamedTuple

from packhorse.serve.http.checks import Fields
from packhorse.serve.models.model import ServedModel


class Cut(NamedTuple):
    """Limit of a text.

    truncation  whether longer texts are cut, rather than refused
    max_length  the most tokens of a text, special ones included; None: as many as the model takes
    """

    truncation: bool
    max_length: int | None = None


def tokens_kept(fields: Fields, name: str, most: int) -> int | None:
    """The most tokens that a field leaves of a text: 1 to `most`; -1, which stands for `most`;
    None where it is left out."""
    value = fields.get(name)
    if value == -1:
        return most
    return fields.integer(name, 1, most)


def read_cut(fields: Fields, model: ServedModel, truncation: bool) -> Cut:
    """Reads vLLM's `truncate_prompt_tokens`; where it is left out, all that the model takes is
    kept, and more is cut if `truncation` says so."""
    kept = tokens_kept(fields, "truncate_prompt_tokens", model.text.max_length)
    return Cut(truncation) if kept is None else Cut(True, kept)
