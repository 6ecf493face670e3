from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packhorse._native.device import DeviceArray
from packhorse.load_options import LoadOptions
from packhorse.names import OutputName

Allocation = tuple[int, list[tuple[str, int, int]]]

class _Tensor(Protocol):
    @property
    def data(self) -> npt.NDArray[Any]: ...
    @property
    def dtype(self) -> str: ...

class NativeSession:
    hidden_size: int
    device_index: int
    max_seqlen: int
    outputs: dict[OutputName, tuple[bool, int]]
    @staticmethod
    def load(
        spec_json: str,
        files: list[Path],
        names: dict[str, str],
        tensors: Mapping[str, _Tensor] | None,
        given: LoadOptions,
    ) -> NativeSession: ...
    def check_open(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def run(
        self,
        ids: npt.NDArray[np.int32],
        cu_seqlens: npt.NDArray[np.int32],
        type_ids: npt.NDArray[np.int32] | None,
        position_ids: npt.NDArray[np.int32] | None,
        rows: npt.NDArray[np.int32] | None,
        arrays: Mapping[OutputName, npt.NDArray[np.float32]],
        features: npt.NDArray[np.float32] | None = ...,
    ) -> None: ...
    def run_patches(
        self,
        features: npt.NDArray[np.float32],
        columns: int,
        grids: npt.NDArray[np.int32],
        arrays: Mapping[OutputName, npt.NDArray[np.float32]],
    ) -> None: ...
    def run_patches_from_device(
        self,
        features: tuple[int, str, int, int],
        grids: npt.NDArray[np.int32],
        stream: int,
        arrays: Mapping[OutputName, npt.NDArray[np.float32]],
    ) -> None: ...
    def run_patches_to_device(
        self,
        features: npt.NDArray[np.float32],
        columns: int,
        grids: npt.NDArray[np.int32],
        outputs: Sequence[OutputName],
        stream: int,
    ) -> dict[OutputName, DeviceArray]: ...
    def run_patches_on_device(
        self,
        features: tuple[int, str, int, int],
        grids: npt.NDArray[np.int32],
        owner: Any,
        outputs: Sequence[OutputName],
        stream: int,
    ) -> dict[OutputName, DeviceArray]: ...
    def run_from_device(
        self,
        batch: tuple[int, ...],
        rows: npt.NDArray[np.int32] | None,
        stream: int,
        arrays: Mapping[OutputName, npt.NDArray[np.float32]],
    ) -> None: ...
    def run_to_device(
        self,
        ids: npt.NDArray[np.int32],
        cu_seqlens: npt.NDArray[np.int32],
        type_ids: npt.NDArray[np.int32] | None,
        position_ids: npt.NDArray[np.int32] | None,
        rows: npt.NDArray[np.int32] | None,
        outputs: Sequence[OutputName],
        stream: int,
    ) -> dict[OutputName, DeviceArray]: ...
    def run_on_device(
        self,
        batch: tuple[int, ...],
        rows: npt.NDArray[np.int32] | None,
        owner: Any,
        outputs: Sequence[OutputName],
        stream: int,
    ) -> dict[OutputName, DeviceArray]: ...
    @property
    def stream(self) -> int: ...
    def wait_for(self, stream: int) -> None: ...
    def time_encoder(
        self,
        ids: npt.NDArray[np.int32],
        cu_seqlens: npt.NDArray[np.int32],
        samples: int,
        launches: int = 10,
    ) -> list[float]: ...
    def explain(
        self,
        ids: npt.NDArray[np.int32],
        cu_seqlens: npt.NDArray[np.int32],
        type_ids: npt.NDArray[np.int32] | None,
        position_ids: npt.NDArray[np.int32] | None,
    ) -> list[str]: ...
    def memory_plan(self) -> tuple[Allocation, Allocation]: ...

def plan_memory(spec_json: str, given: LoadOptions) -> tuple[Allocation, Allocation]: ...
def available_devices() -> list[str]: ...
def load_progress() -> tuple[int, int]: ...
def start_cpu_profile() -> None: ...
def stop_cpu_profile() -> dict[str, float]: ...
def version() -> str: ...
