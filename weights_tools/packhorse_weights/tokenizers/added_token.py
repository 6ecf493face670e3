"""A token that is searched for in a text before anything else is done with it, and its forms in
the files of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packhorse_weights.errors import CheckpointError

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class AddedToken:
    """A token beside those of the model's own vocabulary, or one of them with flags.

    normalized: whether the search is in the text as the normalizer leaves it. lstrip, rstrip:
    whether white space to its left or right belongs to it. single_word: whether it counts only as a
    word of its own. special: whether it stands for no text.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = True

    def entry(self, token_id: int) -> dict[str, Any]:
        """The entry for `added_tokens` in a tokenizer.json."""
        return {"id": token_id, "content": self.content, **self.flags}

    @property
    def flags(self) -> dict[str, bool]:
        return {name: getattr(self, name) for name in _FLAGS}


def read_token(value: object, where: str) -> AddedToken | None:
    """Reads a token with flags of its own, which is a JSON object. Returns None for anything
    else."""
    if not isinstance(value, dict):
        return None
    content = value.get("content")
    flags = {name: value[name] for name in _FLAGS if name in value}
    if (
        not isinstance(content, str)
        or not content
        or not all(type(flag) is bool for flag in flags.values())
    ):
        raise CheckpointError(f"{where}: the token {value!r:.80} is not usable")
    special = flags.get("special", False)
    return AddedToken(content, **{"normalized": not special, "special": special, **flags})


def read_tokens(value: object, where: str) -> list[AddedToken]:
    """Reads a list of special tokens, texts or objects; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, str | dict) for one in value):
        raise CheckpointError(f"{where}: expected a list of tokens, found {value!r:.80}")
    return [read_token(one, where) or AddedToken(one) for one in value if one != ""]
