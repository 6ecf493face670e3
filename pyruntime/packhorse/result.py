"""What a run gives back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from packhorse.packing import Int32Array

FloatArray = npt.NDArray[np.float32]

OUTPUT_NAMES = ("hidden", "embedding", "pooled")


class RunResult:
    """Host arrays that the caller owns. Only outputs that were asked for are here.

    hidden     float32[T, hidden_size]  last hidden state, token by token
    embedding  float32[B, hidden_size]  pooled and normalised as the checkpoint says
    pooled     float32[B, hidden_size]  the pooler head
    cu_seqlens int32[B+1]               where each sequence begins in `hidden`
    """

    __slots__ = ("_arrays", "cu_seqlens")

    def __init__(self, arrays: dict[str, FloatArray], cu_seqlens: Int32Array) -> None:
        self._arrays = arrays
        self.cu_seqlens = cu_seqlens

    def _get(self, name: str) -> FloatArray:
        if name not in self._arrays:
            raise AttributeError(
                f"output '{name}' was not computed; ask for it: outputs={[*self._arrays, name]}"
            )
        return self._arrays[name]

    @property
    def hidden(self) -> FloatArray:
        return self._get("hidden")

    @property
    def embedding(self) -> FloatArray:
        return self._get("embedding")

    @property
    def pooled(self) -> FloatArray:
        return self._get("pooled")

    def unpack(self) -> list[FloatArray]:
        """One view `[n_i, hidden_size]` of `hidden` for each sequence."""
        hidden = self.hidden
        offsets = self.cu_seqlens.tolist()
        return [hidden[begin:end] for begin, end in pairwise(offsets)]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in self._arrays.items())
        return f"RunResult({shapes})"
