"""Typed access to a config.json, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse_weights.errors import CheckpointError

_MAX_SIZE = (1 << 31) - 1


class Config:
    """The fields of one config.json. `where` is its path, for messages."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def integer(
        self, name: str, default: int | None = None, low: int = 1, high: int = _MAX_SIZE
    ) -> int:
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not low <= value <= high:
            found = "nothing" if value is None else f"{value!r:.80}"
            raise CheckpointError(
                f"{self.where}: {name}: expected a whole number from {low} to {high}, found {found}"
            )
        return value

    def number(self, name: str, default: float) -> float:
        value = self.fields.get(name, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise CheckpointError(
                f"{self.where}: {name}: expected a number from 0 to 1, found {value!r:.80}"
            )
        return float(value)

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """The value that `choices` gives for what the field says."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise CheckpointError(
                f"{self.where}: {name} {value!r:.80} is not supported; "
                f"supported: {', '.join(choices)}"
            )
        return choices[value]

    def refuse(self, name: str, *harmless: object) -> None:
        """Refuses a field whose value is something else than absent, None, False or `harmless`."""
        value = self.fields.get(name)
        if value not in (None, False, *harmless):
            raise CheckpointError(f"{self.where}: {name} = {value!r:.80} is not supported")
