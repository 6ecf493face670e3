from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packhorse._native.session import Allocation
from packhorse.generation.results import FinishReason
from packhorse.generation.sampling import Sampling
from packhorse.load_options import LoadOptions

GenerationPlan = tuple[
    Allocation, Allocation, Allocation, Allocation, Allocation, Allocation, Allocation, int, int
]
# A draft model: its spec, dtype, files, names of tensors, tensors.
DraftModel = tuple[str, str, list[Path], dict[str, str], Mapping[str, Any] | None]

def end_masks() -> None: ...

class NativeMailbox:
    @property
    def fd(self) -> int: ...
    def take(self) -> list[int]: ...

class NativeRequest:
    def next(self, sequence: int, timeout_s: float | None = None) -> list[int]: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def cancel(self) -> None: ...
    @property
    def num_sequences(self) -> int: ...
    def finish_reason(self, sequence: int) -> FinishReason: ...
    def result(
        self, sequence: int
    ) -> tuple[list[int], list[float], list[tuple[int, float]], float, FinishReason, str]: ...
    def prompt_logprobs(self) -> tuple[list[float], list[tuple[int, float]]]: ...
    def usage(self) -> tuple[int, int, int, int, int]: ...
    def listen(self, mailbox: NativeMailbox, number: int) -> None: ...
    def stop_listening(self) -> None: ...

class NativeGenerationSession:
    max_context: int
    vocab_size: int
    max_source: int
    frame_features: int
    @staticmethod
    def load(
        spec_json: str,
        files: list[Path],
        names: dict[str, str],
        tensors: Mapping[str, Any] | None,
        given: LoadOptions,
        eos_ids: Sequence[int] = (),
        draft: DraftModel | None = None,
    ) -> NativeGenerationSession: ...
    def check_open(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def submit(
        self,
        ids: npt.NDArray[np.int32],
        sampling: Sampling,
        timeout_s: float,
        source: npt.NDArray[np.int32] | None = None,
    ) -> NativeRequest: ...
    def submit_features(
        self,
        ids: npt.NDArray[np.int32],
        sampling: Sampling,
        timeout_s: float,
        features: npt.NDArray[np.float32],
    ) -> NativeRequest: ...
    def submit_all(
        self,
        prompts: list[npt.NDArray[np.int32]],
        sampling: Sampling,
        timeout_s: float,
        submitted_to: deque[NativeRequest],
        sources: list[npt.NDArray[np.int32]] = ...,
    ) -> None: ...
    def add_adapter(self, name: str, tensors: dict[str, Any]) -> None: ...
    def remove_adapter(self, name: str) -> None: ...
    def adapters(self) -> list[str]: ...
    def mailbox(self) -> NativeMailbox: ...
    def memory_plan(self) -> GenerationPlan: ...
    def stats(self) -> dict[str, int]: ...

def plan_generation(
    spec_json: str, given: LoadOptions, draft: tuple[str, str] | None = None
) -> GenerationPlan: ...
