"""The metadata that says what a model of a GGUF file computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse_weights.config import Config
from packhorse_weights.errors import CheckpointError
from packhorse_weights.formats.gguf.file import GgufFile
from packhorse_weights.formats.gguf.tensor import open_tensor
from packhorse_weights.tensor import to_float32

Fields = dict[str, Any]  # a config.json

_HIGH = 1e12
# Keys that say nothing about the arithmetic.
_HARMLESS = ("rope.scaling.finetuned", "tensor_data_layout", "embedding_length_out")


def shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05, not 9.9999997e-06."""
    return float(str(np.float32(value)))


class _Noting(dict[str, Any]):
    """A dict that keeps in mind which keys somebody asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


class Metadata(Config):
    """The keys of one architecture, without its name in front of them; and the tensors."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        prefix = f"{architecture}."
        own = {
            key.removeprefix(prefix): value
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }
        self._noting = _Noting(own)
        super().__init__(self._noting, f"{file.path}: {architecture}")
        self.file, self.architecture = file, architecture

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def decimal(self, name: str, default: float | None = None) -> float:
        """A number that the file holds in float32."""
        if default is None and self.fields.get(name) is None:
            raise CheckpointError(f"{self.where}: {name}: expected a number, found nothing")
        return shortest(self.number(name, 0.0 if default is None else default, _HIGH))

    def factors(self, tensor: str, count: int) -> NDArray[np.float32] | None:
        """Returns what each frequency is divided by, or None if the file has no such tensor."""
        stored = self.file.tensors.get(tensor)
        if stored is None:
            return None
        values = to_float32(open_tensor(stored))
        if values.shape != (count,) or not (np.isfinite(values) & (values > 0)).all():
            raise CheckpointError(
                f"{self.file.path}: tensor {tensor}: expected {count} positive numbers, found "
                f"shape {list(values.shape)}"
            )
        return values

    def refuse_rest(self) -> None:
        """Raises CheckpointError for a key that nothing has asked for."""
        for name, value in self.fields.items():
            harmless = isinstance(value, bool | int | float) and not value
            if name not in (*self._noting.asked, *_HARMLESS) and not harmless:
                raise CheckpointError(f"{self.where}.{name} = {value!r:.80} is not supported")
