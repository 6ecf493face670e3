"""Limits of length and prompts of texts, as a model's files and the caller ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packhorse_weights.spec import longest_text

from packhorse.load_arguments import is_count

if TYPE_CHECKING:
    from packhorse_weights.text import TextConfig


def longest_sequence(config: Mapping[str, Any], wanted: int | None) -> int:
    """Limit of tokens of a text: as wanted, or as a valid spec says. Raises ValueError for too
    much."""
    limit = longest_text(config)
    if wanted is None:
        wanted = config.get("max_length", limit)
        if type(wanted) is not int or wanted < 1:
            raise ValueError(f"spec: 'max_length' is {wanted!r:.80}, expected a positive integer")
        return min(wanted, limit)
    if not is_count(wanted) or not 1 <= wanted <= limit:
        raise ValueError(
            f"max_length {wanted!r:.80} is not between 1 and the model's longest sequence, {limit}"
        )
    return wanted


def choose_prompt(config: TextConfig, prompt: str | None, name: str | None) -> str:
    """The prompt itself, or the model's of this name, or its default one, or none."""
    for given, what in ((prompt, "prompt"), (name, "prompt_name")):
        if given is not None and not isinstance(given, str):
            raise ValueError(f"{what} is {given!r:.80}, expected a text")
    if prompt is not None:
        if name is not None:
            raise ValueError("give either a prompt or a prompt_name, not both")
        return prompt
    name = config.default_prompt_name if name is None else name
    if name is None:
        return ""
    if name not in config.prompts:
        known = ", ".join(config.prompts) or "it has none"
        raise ValueError(f"prompt_name {name!r:.80} is not one of this model's prompts: {known}")
    return config.prompts[name]
