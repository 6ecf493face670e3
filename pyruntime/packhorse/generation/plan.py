"""The memory plan of a session that generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packhorse.memory import MemoryPlan, PlannedAllocation

if TYPE_CHECKING:
    from packhorse._generation import GenerationPlan


@dataclass(frozen=True)
class GenerationMemoryPlan(MemoryPlan):
    """Weights, arena, and the cache of keys and values: `kv_cache` in bytes, `kv_tokens` in tokens
    of all sequences together, `bytes_per_token` of the cache."""

    kv_cache: PlannedAllocation
    kv_tokens: int
    bytes_per_token: int

    @property
    def total_bytes(self) -> int:
        """Bytes of weights, arena and cache together."""
        return super().total_bytes + self.kv_cache.bytes

    @classmethod
    def of_generation(cls, plan: GenerationPlan) -> GenerationMemoryPlan:
        """The plan as the runtime gives it."""
        weights, arena, cache, kv_tokens, bytes_per_token = plan
        base = MemoryPlan.from_native((weights, arena))
        kv_cache = PlannedAllocation.from_native(cache)
        return cls(base.weights, base.arena, kv_cache, kv_tokens, bytes_per_token)

    def __str__(self) -> str:
        *lines, total = super().__str__().splitlines()
        mebibytes = f"{self.kv_cache.bytes / 2**20:10.2f} MiB"
        cache = f"{self.kv_tokens} tokens of {self.bytes_per_token} bytes"
        return "\n".join([*lines, f"cache   {mebibytes} for {cache}", total])
