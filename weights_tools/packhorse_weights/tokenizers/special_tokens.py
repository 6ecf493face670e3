"""The special and added tokens that a folder's files name beside its vocabulary.

tokenizer_config.json names them, or in older folders special_tokens_map.json and added_tokens.json
do. Precedence is that of transformers: where there is an `added_tokens_decoder`, the older files
are not read and its flags decide; where there is none, special_tokens_map.json comes before
tokenizer_config.json.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import has_file, read_json
from packhorse_weights.tokenizers.added_token import AddedToken, read_token, read_tokens

_ATTRIBUTES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order of their ids
_LISTS = ("additional_special_tokens", "extra_special_tokens")


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


class SpecialTokens:
    """The tokens by their purpose, and those that the files add to the vocabulary.

    named  by the field that says their purpose, such as "cls_token" or "image_token"
    more   those that a list names, without a purpose
    texts  those that chat templates find under `additional_special_tokens`
    added  those with flags or ids of their own, by ascending id
    """

    def __init__(self, folder: Path, settings: Config, names: Names) -> None:
        self._names = names
        self._where = settings.where
        fields = dict(settings.fields)
        decoder = settings.section("added_tokens_decoder").fields
        self.has_decoder = "added_tokens_decoder" in fields
        self.numbered = self._decoded(decoder)
        if not self.has_decoder:
            fields |= self._older(folder, fields)
        # added_tokens.json has no flags, so a special token that comes with flags of its own keeps
        # those.
        known = {token.content: token for _, token in self.numbered}
        self.named: dict[str, AddedToken] = {}
        for name in self._purposes(fields):
            token = self._find(name, fields)
            if token is not None:
                has_flags = isinstance(fields.get(name), dict) and not self.has_decoder
                self.named[name] = token if has_flags else known.get(token.content, token)
        more: dict[str, AddedToken] = {}
        for token in self._listed(fields):
            more.setdefault(token.content, known.get(token.content, token))
        self.more = list(more.values())
        additional, extra = (fields.get(name) for name in _LISTS)
        listed = self.more if extra is None else read_tokens(additional, self._where)
        self.texts = [token.content for token in listed]

    @property
    def added(self) -> list[AddedToken]:
        return [token for _, token in self.numbered]

    def _purposes(self, fields: Mapping[str, Any]) -> list[str]:
        """The usual fields, then those of the model alone: others that end in "_token", and those
        of an object of extra tokens."""
        extra = fields.get("extra_special_tokens")
        own = [
            name
            for name, value in fields.items()
            if name.endswith("_token") and isinstance(value, str | dict)
        ]
        usual = (f"{name}_token" for name in _ATTRIBUTES)
        return list(dict.fromkeys((*usual, *own, *(extra if isinstance(extra, dict) else ()))))

    def _listed(self, fields: Mapping[str, Any]) -> list[AddedToken]:
        lists = [fields.get(name) for name in _LISTS]
        found = [
            token
            for value in lists
            if not isinstance(value, dict)
            for token in read_tokens(value, self._where)
        ]
        given = any(value is not None for value in lists)
        return found if given else [AddedToken(text) for text in self._names.more]

    def _decoded(self, decoder: Mapping[str, Any]) -> list[tuple[int, AddedToken]]:
        found: list[tuple[int, AddedToken]] = []
        for number, value in decoder.items():
            token = read_token(value, f"{self._where}: added_tokens_decoder")
            if token is None or not number.isdecimal() or len(number) > 9:
                raise CheckpointError(
                    f"{self._where}: added_tokens_decoder: {number!r:.40} is {value!r:.60}, not a "
                    "token"
                )
            found.append((int(number), token))
        return sorted(found, key=lambda one: one[0])

    def _older(self, folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the fields of special_tokens_map.json, and the tokens of added_tokens.json into
        `numbered`."""
        path = folder / "special_tokens_map.json"
        changes = read_json(path) if has_file(path) else {}
        for name, value in changes.items():
            if name in _LISTS and isinstance(value, list):
                read_tokens(value, str(path))
                before = fields.get(name)
                before = before if isinstance(before, list) else []
                changes[name] = [*before, *(one for one in value if one not in before)]
            elif isinstance(value, dict) and name not in _LISTS:
                changes[name] = {**value, "special": True}
        path = folder / "added_tokens.json"
        if has_file(path):
            special = {**fields, **changes}
            values = [value for name, value in special.items() if name.endswith("_token")]
            contents = [one.get("content") if isinstance(one, dict) else one for one in values]
            contents += [token.content for token in self._listed(special)]
            numbers = read_json(path)
            for text, number in numbers.items():
                if type(number) is not int or not 0 <= number < 1 << 31:
                    raise CheckpointError(
                        f"{path}: {text!r:.80} has the id {number!r:.40}, expected a whole number "
                        "from 0"
                    )
            for text in sorted(numbers, key=numbers.__getitem__):
                is_special = text in contents
                token = AddedToken(text, normalized=not is_special, special=is_special)
                self.numbered.append((numbers[text], token))
        return changes

    def _find(self, name: str, fields: Mapping[str, Any]) -> AddedToken | None:
        purpose = name.removesuffix("_token")
        extra = fields.get("extra_special_tokens")
        value = fields.get(name, getattr(self._names, purpose, None))
        if isinstance(extra, dict):
            value = extra.get(name, value)
        if value is None or value == "":
            return None
        token = read_token(value, self._where)
        if token is None:
            if not isinstance(value, str):
                raise CheckpointError(f"{self._where}: {name} is {value!r:.80}, not a token")
            normalized = purpose in self._names.normalized
            lstrip = name == "mask_token" and self._names.mask_lstrip
            token = AddedToken(value, lstrip=lstrip, normalized=normalized)
        return token

    def text(self, purpose: str) -> str:
        """The text of the token for "cls", "sep", ... Raises CheckpointError if there is none."""
        found = self.find(purpose)
        if found is None:
            raise CheckpointError(f"{self._where}: no {purpose}_token, which this tokenizer needs")
        return found

    def find(self, purpose: str) -> str | None:
        """The text of the token for "cls", "sep", ..., None if there is none."""
        token = self.named.get(f"{purpose}_token")
        return None if token is None else token.content

    def with_more(self, texts: Iterable[str]) -> SpecialTokens:
        """Adds further tokens, which a class of tokenizers always has, to a copy."""
        found = copy.copy(self)
        known = {token.content for token in self.more}
        found.more = [*self.more, *(AddedToken(text) for text in texts if text not in known)]
        return found

    def additions(self, own: Mapping[int, AddedToken]) -> list[AddedToken]:
        """Returns what is added to or changed in the tokenizer of a tokenizer.json, in order.

        own  the tokens that tokenizer.json itself adds, by id. They keep their flags, unless an
             `added_tokens_decoder` gives others; what serves a purpose is special in any case.
        """
        numbered = self.numbered
        if not self.has_decoder:
            numbered = sorted({**dict(numbered), **own}.items(), key=lambda one: one[0])
        purposes = {token.content for token in self.named.values()}
        found = {
            token.content: dataclasses.replace(
                token, special=token.special or token.content in purposes
            )
            for _, token in numbered
        }
        known = {token.content for token in own.values()} | found.keys()
        for token in self.named.values():
            if token.content not in known:
                found.setdefault(token.content, dataclasses.replace(token, special=True))
        for token in self.more:
            if token.content not in known:
                found.setdefault(token.content, token)
        unchanged = set(own.values())
        return [token for token in found.values() if token not in unchanged]

    def entries(
        self, vocab: Mapping[str, int], size: int, first: Iterable[AddedToken] = ()
    ) -> list[dict[str, Any]]:
        """Returns `added_tokens` of a tokenizer.json for a vocabulary that has none.

        vocab, size  the model's vocabulary and its size: tokens in it keep their ids, the others
                     get the ids after it
        first        tokens that the model itself adds
        """
        ids: dict[str, int] = {}
        found: dict[str, AddedToken] = {}
        tokens = [*self.named.values(), *self.more]
        special = {token.content for token in tokens}
        for token in (*first, *self.added, *tokens):
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
