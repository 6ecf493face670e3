"""The memory plan of a session that generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packhorse.memory import MemoryPlan, PlannedAllocation, mebibytes

if TYPE_CHECKING:
    from packhorse._generation import GenerationPlan


@dataclass(frozen=True)
class GenerationMemoryPlan(MemoryPlan):
    """Weights, arena, the slots of `adapters`, and the cache of keys and values: `kv_cache` in
    bytes, `kv_tokens` in tokens of all sequences together, `bytes_per_token` of the cache."""

    adapters: PlannedAllocation
    kv_cache: PlannedAllocation
    kv_tokens: int
    bytes_per_token: int

    @property
    def total_bytes(self) -> int:
        """Bytes of weights, arena, adapters and cache together."""
        return super().total_bytes + self.adapters.bytes + self.kv_cache.bytes

    @classmethod
    def of_generation(cls, plan: GenerationPlan) -> GenerationMemoryPlan:
        """The plan as the runtime gives it."""
        *allocations, kv_tokens, bytes_per_token = plan
        weights, arena, adapters, kv_cache = map(PlannedAllocation.from_native, allocations)
        return cls(weights, arena, adapters, kv_cache, kv_tokens, bytes_per_token)

    def __str__(self) -> str:
        *lines, total = super().__str__().splitlines()
        if self.adapters.bytes:
            lines.append(f"adapters{mebibytes(self.adapters.bytes)}")
        cache = f"{self.kv_tokens} tokens of {self.bytes_per_token} bytes"
        lines.append(f"cache   {mebibytes(self.kv_cache.bytes)} for {cache}")
        return "\n".join([*lines, total])
