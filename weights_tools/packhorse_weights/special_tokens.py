"""The special and added tokens of a folder that has no tokenizer.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, read_json

_ATTRIBUTES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order of their ids
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class AddedToken:
    """A token that is searched for in a text before anything else is done with it.

    normalized: whether the search is in the text as the normalizer leaves it. lstrip, rstrip:
    whether white space to its left or right belongs to it. single_word: whether it counts only as a
    word of its own.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = True

    def entry(self, token_id: int) -> dict[str, Any]:
        """The entry for `added_tokens` in a tokenizer.json."""
        flags = {name: getattr(self, name) for name in _FLAGS}
        return {"id": token_id, "content": self.content, **flags}


@dataclass(frozen=True)
class Names:
    """The names that a tokenizer class of transformers gives its tokens if no file names them.

    normalized: the tokens that are searched for in normalised text if a file gives no flags.
    mask_lstrip: whether white space before the mask token belongs to it. more: further tokens.
    """

    bos: str | None = None
    eos: str | None = None
    unk: str | None = None
    sep: str | None = None
    pad: str | None = None
    cls: str | None = None
    mask: str | None = None
    normalized: tuple[str, ...] = ()
    mask_lstrip: bool = False
    more: tuple[str, ...] = ()


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


def _texts(value: object, where: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(one, str | dict) for one in value):
        raise CheckpointError(f"{where}: expected a list of tokens, found {value!r:.80}")
    return value


class SpecialTokens:
    """The tokens by their purpose, and those that the files add to the vocabulary, in order."""

    def __init__(self, folder: Path, settings: Config, names: Names) -> None:
        self._names = names
        fields = dict(settings.fields)
        self._where = settings.where
        decoder = settings.section("added_tokens_decoder").fields
        self.added = self._decoded(decoder)
        if not self.added:
            fields |= self._older(folder, fields)
        # If there is an added_tokens_decoder, its flags decide. added_tokens.json has no flags, so
        # a special token that comes with flags of its own keeps those.
        known = {token.content: token for token in self.added}
        self._tokens: dict[str, AddedToken] = {}
        for name in _ATTRIBUTES:
            token = self._find(name, fields)
            if token is not None:
                has_flags = isinstance(fields.get(f"{name}_token"), dict) and not decoder
                self._tokens[name] = token if has_flags else known.get(token.content, token)
        more = fields.get("additional_special_tokens")
        for value in _texts(list(names.more) if more is None else more, self._where):
            token = read_token(value, self._where) or AddedToken(value)
            self._tokens[f"more {token.content}"] = known.get(token.content, token)

    def _decoded(self, decoder: Mapping[str, Any]) -> list[AddedToken]:
        found: list[tuple[int, AddedToken]] = []
        for number, value in decoder.items():
            token = read_token(value, f"{self._where}: added_tokens_decoder")
            if token is None or not number.isdecimal() or len(number) > 9:
                raise CheckpointError(
                    f"{self._where}: added_tokens_decoder: {number!r:.40} is {value!r:.60}, not a "
                    "token"
                )
            found.append((int(number), token))
        return [token for _, token in sorted(found, key=lambda one: one[0])]

    def _older(self, folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the fields of special_tokens_map.json, and the tokens of added_tokens.json into
        `added`."""
        path = folder / "special_tokens_map.json"
        changes = read_json(path) if has_file(path) else {}
        for name, value in changes.items():
            if isinstance(value, dict):
                changes[name] = {**value, "special": True}
            if name == "additional_special_tokens":
                before = _texts(fields.get(name) or [], self._where)
                changes[name] = [
                    *before,
                    *(one for one in _texts(value, str(path)) if one not in before),
                ]
        path = folder / "added_tokens.json"
        if has_file(path):
            special = {**fields, **changes}
            values = [value for name, value in special.items() if name.endswith("_token")]
            values += _texts(special.get("additional_special_tokens") or [], str(path))
            contents = [one.get("content") if isinstance(one, dict) else one for one in values]
            numbers = read_json(path)
            for text, number in numbers.items():
                if type(number) is not int or not 0 <= number < 1 << 31:
                    raise CheckpointError(
                        f"{path}: {text!r:.80} has the id {number!r:.40}, expected a whole number "
                        "from 0"
                    )
            for text in sorted(numbers, key=numbers.__getitem__):
                is_special = text in contents
                self.added.append(AddedToken(text, normalized=not is_special, special=is_special))
        return changes

    def _find(self, name: str, fields: Mapping[str, Any]) -> AddedToken | None:
        value = fields.get(f"{name}_token", getattr(self._names, name))
        if value is None or value == "":
            return None
        token = read_token(value, self._where)
        if token is None:
            if not isinstance(value, str):
                raise CheckpointError(f"{self._where}: {name}_token is {value!r:.80}, not a token")
            normalized = name in self._names.normalized
            lstrip = name == "mask" and self._names.mask_lstrip
            token = AddedToken(value, lstrip=lstrip, normalized=normalized)
        return token

    @property
    def mask(self) -> str | None:
        return self._tokens["mask"].content if "mask" in self._tokens else None

    def text(self, name: str) -> str:
        """The text of the token for "cls", "sep", ... Raises CheckpointError if there is none."""
        if name not in self._tokens:
            raise CheckpointError(f"{self._where}: no {name}_token, which this tokenizer needs")
        return self._tokens[name].content

    def entries(
        self, vocab: Mapping[str, int], size: int, first: Iterable[AddedToken] = ()
    ) -> list[dict[str, Any]]:
        """Returns `added_tokens` of a tokenizer.json.

        vocab, size  the model's vocabulary and its size: tokens in it keep their ids, the others
                     get the ids after it
        first        tokens that the model itself adds
        """
        ids: dict[str, int] = {}
        found: dict[str, AddedToken] = {}
        special = {token.content for token in self._tokens.values()}
        for token in (*first, *self.added, *self._tokens.values()):
            content = token.content
            if content not in ids:
                last = max(ids.values(), default=-1)
                ids[content] = vocab.get(content, max(size, last + 1))
            found[content] = dataclasses.replace(token, special=token.special or content in special)
        return [found[content].entry(ids[content]) for content in sorted(ids, key=ids.__getitem__)]

    def ids(self, entries: Iterable[Mapping[str, Any]], *names: str) -> dict[str, int]:
        """The ids of the tokens for `names`, by their text."""
        known = {entry["content"]: entry["id"] for entry in entries}
        return {self.text(name): known[self.text(name)] for name in names}
