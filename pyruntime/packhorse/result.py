"""The results of a run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from packhorse._native.device import DeviceArray
from packhorse.names import OutputName

FloatArray = npt.NDArray[np.float32]
Array = TypeVar("Array", FloatArray, DeviceArray)


class OutputShape(NamedTuple):
    """The shape of an output: [T, columns] if it is per token, otherwise [B, columns]."""

    per_token: bool
    columns: int


class _Outputs(Generic[Array]):
    __slots__ = ("_arrays", "cu_seqlens")
    _arrays: dict[OutputName, Array]

    def __init__(self, arrays: dict[OutputName, Array], cu_seqlens: Any) -> None:
        self._arrays = arrays
        self.cu_seqlens = cu_seqlens

    def _get(self, name: OutputName) -> Array:
        if name not in self._arrays:
            raise AttributeError(
                f"output '{name}' was not computed; ask for it: outputs={[*self._arrays, name]}"
            )
        return self._arrays[name]

    def __getitem__(self, name: OutputName) -> Array:
        """The output of this name. Raises KeyError if it was not computed."""
        return self._arrays[name]

    @property
    def hidden(self) -> Array:
        """[T, hidden_size]: the last hidden state of every token."""
        return self._get("hidden")

    @property
    def embedding(self) -> Array:
        """[B, columns]: one vector for each sequence, pooled as the checkpoint says."""
        return self._get("embedding")

    @property
    def pooled(self) -> Array:
        """[B, hidden_size]: the output of the pooler head for each sequence."""
        return self._get("pooled")

    @property
    def logits(self) -> Array:
        """[B, labels], or [T, labels] if the classifier labels tokens."""
        return self._get("logits")

    @property
    def token_weights(self) -> Array:
        """[T, 1]: a weight of each token, for lexical matching."""
        return self._get("token_weights")

    @property
    def vectors(self) -> Array:
        """[T, size]: a vector of each token, for late interaction."""
        return self._get("vectors")

    @property
    def sparse(self) -> Array:
        """[B, vocab_size]: a weight of each entry of the vocabulary, nearly all zero."""
        return self._get("sparse")

    @property
    def predictions(self) -> Array:
        """[rows, vocab_size]: logits of the language model for the rows that were asked
        for."""
        return self._get("predictions")

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in self._arrays.items())
        return f"{type(self).__name__}({shapes})"


class RunResult(_Outputs[FloatArray]):
    """Host arrays that the caller owns. It has only the outputs that were asked for.

    hidden     float32[T, hidden_size]  last hidden state, token by token
    embedding  float32[B, columns]      pooled, passed through dense layers and normalised as
                                        the checkpoint says
    pooled     float32[B, hidden_size]  the output of the pooler head
    logits     float32[B, num_labels]   of the classifier; [T, num_labels] if it labels tokens
    vectors    float32[T, size]         a vector of each token, for late interaction
    token_weights float32[T, 1]         a weight of each token, for lexical matching
    sparse     float32[B, vocab_size]   a weight of each entry of the vocabulary, nearly all zero
    predictions float32[rows, vocab_size]  logits of the language model
    cu_seqlens int32[B+1]               where each sequence begins in `hidden`
    """

    __slots__ = ()

    def unpack(self) -> list[FloatArray]:
        """Returns one view `[n_i, hidden_size]` of `hidden` for each sequence."""
        hidden = self.hidden
        offsets = self.cu_seqlens.tolist()
        return [hidden[begin:end] for begin, end in pairwise(offsets)]


class DeviceResult(_Outputs[DeviceArray]):
    """Arrays that stay on the device. It has only the outputs that were asked for.

    hidden     [T, hidden_size], in the session's dtype
    pooled     [B, hidden_size], in the session's dtype
    the others float32, of the shapes that `RunResult` has
    cu_seqlens the batch's own

    Together they lease one of the session's output slots. It is free when all of them, and
    everything that consumers made of them without a copy, have been deleted or released.
    """

    __slots__ = ()

    def check(self) -> None:
        """Waits for the run. Raises ValueError if the device found an error in the batch, saying
        what it found."""
        for array in self._arrays.values():
            array.check()

    def release(self) -> None:
        """Releases every array."""
        for array in self._arrays.values():
            array.release()

    def __enter__(self) -> DeviceResult:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"DeviceResult({', '.join(f'{name} {a}' for name, a in self._arrays.items())})"
