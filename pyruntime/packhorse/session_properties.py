"""What a session says about itself and its model."""

from __future__ import annotations

from typing import Any

from packhorse._native.session import NativeSession
from packhorse.lifetime import SessionLifetime
from packhorse.names import Dtype, OutputName
from packhorse.options import GenerationOptions, SessionOptions
from packhorse.result import OutputShape


class SessionProperties(SessionLifetime):
    """The properties of `Session`."""

    config: dict[str, Any]
    _native: NativeSession
    _options: SessionOptions | GenerationOptions
    _max_predictions: int

    @property
    def generates(self) -> bool:
        """Whether it is a `GenerationSession`: it generates, and gives nothing else."""
        return False

    @property
    def hidden_size(self) -> int:
        """The number of columns of `hidden`."""
        return self._native.hidden_size

    @property
    def embedding_size(self) -> int:
        """The number of columns of `embedding`."""
        return self._native.outputs["embedding"][1]

    @property
    def outputs(self) -> dict[OutputName, OutputShape]:
        """The outputs that `run` can compute, by name."""
        return {name: OutputShape(*shape) for name, shape in self._native.outputs.items()}

    @property
    def labels(self) -> list[str]:
        """The names of the columns of `logits`; empty if the model has no classifier."""
        return list(self.config.get("heads", {}).get("classifier", {}).get("labels", ()))

    @property
    def max_seqlen(self) -> int:
        """The length of the longest sequence that the model takes, in tokens."""
        return self._native.max_seqlen

    @property
    def device(self) -> str:
        """The device, as given to `load`."""
        return self._options.device

    @property
    def dtype(self) -> Dtype:
        """The dtype of weights and activations."""
        return self._options.dtype

    @property
    def max_tokens(self) -> int:
        """The number of tokens of the largest batch that `run` takes."""
        return self._options.max_tokens

    @property
    def max_predictions(self) -> int:
        """The largest number of rows for which one run makes predictions."""
        return self._max_predictions

    @property
    def max_sequences(self) -> int:
        """The number of sequences of the largest batch that `run` takes."""
        return self._options.max_sequences
