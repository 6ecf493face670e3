from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Allocation = tuple[int, list[tuple[str, int, int]]]

class NativeSession:
    hidden_size: int
    has_pooler: bool
    @staticmethod
    def load(
        spec_json: str,
        files: list[Path],
        names: dict[str, str],
        tensors: Mapping[str, tuple[npt.NDArray[Any], str]] | None,
        device: str,
        dtype: str,
        max_tokens: int,
        max_sequences: int,
        threads: int | None,
        memory_limit: int | None,
    ) -> NativeSession: ...
    def run(
        self,
        ids: npt.NDArray[np.int32],
        cu_seqlens: npt.NDArray[np.int32],
        type_ids: npt.NDArray[np.int32] | None,
        position_ids: npt.NDArray[np.int32] | None,
        hidden: npt.NDArray[np.float32] | None,
        embedding: npt.NDArray[np.float32] | None,
        pooled: npt.NDArray[np.float32] | None,
    ) -> None: ...
    def time_encoder(
        self,
        ids: npt.NDArray[np.int32],
        cu_seqlens: npt.NDArray[np.int32],
        samples: int,
        launches: int = 10,
    ) -> list[float]: ...
    def memory_plan(self) -> tuple[Allocation, Allocation]: ...

def plan_memory(
    spec_json: str,
    device: str,
    dtype: str,
    max_tokens: int,
    max_sequences: int,
    threads: int | None,
    memory_limit: int | None,
) -> tuple[Allocation, Allocation]: ...
def available_devices() -> list[str]: ...
def version() -> str: ...
