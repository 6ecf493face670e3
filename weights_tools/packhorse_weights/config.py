"""Typed access to a config.json. Errors name the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packhorse_weights.errors import CheckpointError
from packhorse_weights.files import optional_json, read_json

# The greatest value of a whole number that has no other limit. Lists and tables of as many entries,
# which are made before a tensor is looked at, take some tens of megabytes.
MOST = 1 << 20
MOST_LAYERS = 4096
MOST_TOKENS = (1 << 31) - 1  # limit of numbers of tokens, for which no lists or tables are made
_LARGEST, _SMALLEST = 1e12, 1e-12  # limits of numbers that others are divided by


class Config:
    """The fields of one config.json. `where` is its path, for messages."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def renamed(self, names: Mapping[str, str]) -> Config:
        """Returns the same fields, with a family's own names (theirs -> the usual one) renamed."""
        usual = {names[name]: value for name, value in self.fields.items() if name in names}
        return Config({**self.fields, **usual}, self.where)

    @property
    def class_name(self) -> str:
        """The transformers class that wrote the checkpoint, or "" if the config names none."""
        classes = self.fields.get("architectures")
        return str(classes[0]) if isinstance(classes, list) and classes else ""

    def section(self, name: str) -> Config:
        """A field whose value is an object; empty if it is absent."""
        value = self.fields.get(name)
        if not isinstance(value, dict | None):
            raise CheckpointError(f"{self.where}: {name}: expected an object, found {value!r:.80}")
        return Config(value or {}, f"{self.where}: {name}")

    def sections(self, name: str) -> list[Config]:
        """A field whose value is a list of objects."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise CheckpointError(
                f"{self.where}: {name}: expected a list of objects, found {value!r:.80}"
            )
        return [Config(one, f"{self.where}: {name}[{i}]") for i, one in enumerate(value)]

    def integer(self, name: str, default: int | None = None, low: int = 1, high: int = MOST) -> int:
        """A whole number. `default`, which is checked too, counts where there is none."""
        value: Any = self.fields.get(name)
        if value is None:
            value = default
        if type(value) is not int or not low <= value <= high:
            found = "nothing" if value is None else f"{value!r:.80}"
            raise CheckpointError(
                f"{self.where}: {name}: expected a whole number from {low} to {high}, found {found}"
            )
        return value

    def tokens(
        self, name: str, default: int | None = None, low: int = 1, high: int = MOST_TOKENS
    ) -> int:
        """The id of a token, or a number of tokens: `integer` where nothing is made of as many."""
        return self.integer(name, default, low, high)

    def number(self, name: str, default: float, high: float = 1, low: float = 0) -> float:
        value = self.fields.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not low <= value <= high:
            raise CheckpointError(
                f"{self.where}: {name}: expected a number from {low} to {high}, found {value!r:.80}"
            )
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number that others may be divided by."""
        value: Any = self.fields.get(name)
        if value is None:
            value = default
        if type(value) not in (int, float) or not _SMALLEST <= value <= _LARGEST:
            found = "nothing" if value is None else f"{value!r:.80}"
            raise CheckpointError(
                f"{self.where}: {name}: expected a number from {_SMALLEST:g} to {_LARGEST:g}, "
                f"found {found}"
            )
        return float(value)

    def texts(self, name: str, default: Sequence[str] = ()) -> list[str]:
        """A list of texts."""
        value = self.fields.get(name)
        if value is None:
            return list(default)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise CheckpointError(
                f"{self.where}: {name}: expected a list of texts, found {value!r:.80}"
            )
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.fields.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise CheckpointError(
                f"{self.where}: {name}: expected true or false, found {value!r:.80}"
            )
        return value

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """The value of `choices` for the text in a field."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise CheckpointError(
                f"{self.where}: {name} {value!r:.80} is not supported; "
                f"supported: {', '.join(choices)}"
            )
        return choices[value]

    def refuse(self, name: str, *harmless: object) -> None:
        """Raises CheckpointError unless a field is absent, None, False or one of `harmless`."""
        value = self.fields.get(name)
        if value not in (None, False, *harmless):
            raise CheckpointError(f"{self.where}: {name} = {value!r:.80} is not supported")


def read_config(path: Path) -> Config:
    """The fields of a file that must be there."""
    return Config(read_json(path), str(path))


def optional_config(path: Path) -> Config:
    """The fields of a file; none where it is not there."""
    return Config(optional_json(path), str(path))


def language_part(config: Config) -> Config:
    """The config of the language model within one that also sees: Gemma 3's, whose tensors have the
    same names behind another prefix. Other configs are given back as they are."""
    text = config.fields.get("text_config")
    if config.fields.get("model_type") != "gemma3" or not isinstance(text, dict):
        return config
    outer = {
        name: config.fields[name]
        for name in ("architectures", "tie_word_embeddings")
        if name in config.fields
    }
    return Config({"model_type": "gemma3_text", **text, **outer}, f"{config.where}: text_config")
