"""The memory plan of a session that generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packhorse.memory import MemoryPlan, PlannedAllocation, mebibytes

if TYPE_CHECKING:
    from packhorse._native.generation import GenerationPlan


@dataclass(frozen=True)
class GenerationMemoryPlan(MemoryPlan):
    """Weights, arena, the slots of `adapters`, and the cache of keys and values: `kv_cache` in
    bytes, `kv_tokens` in tokens of all sequences together, `bytes_per_token` of the cache. What
    `draft_...` names is of the draft model; its cache holds as many tokens."""

    adapters: PlannedAllocation
    kv_cache: PlannedAllocation
    draft_weights: PlannedAllocation
    draft_arena: PlannedAllocation
    draft_kv_cache: PlannedAllocation
    kv_tokens: int
    bytes_per_token: int

    @property
    def total_bytes(self) -> int:
        """Bytes of weights, arena, adapters and cache together, and of the draft model."""
        return super().total_bytes + self.adapters.bytes + self.kv_cache.bytes + self.draft_bytes

    @property
    def draft_bytes(self) -> int:
        """Bytes of the draft model: its weights, its arena and its cache."""
        of_draft = (self.draft_weights, self.draft_arena, self.draft_kv_cache)
        return sum(one.bytes for one in of_draft)

    @classmethod
    def of_generation(cls, plan: GenerationPlan) -> GenerationMemoryPlan:
        """The plan as the runtime gives it."""
        *allocations, kv_tokens, bytes_per_token = plan
        named = ("weights", "arena", "adapters", "kv_cache")
        of_draft = ("draft_weights", "draft_arena", "draft_kv_cache")
        found = map(PlannedAllocation.from_native, allocations)
        return cls(
            **dict(zip((*named, *of_draft), found, strict=True)),
            kv_tokens=kv_tokens,
            bytes_per_token=bytes_per_token,
        )

    def __str__(self) -> str:
        *lines, total = super().__str__().splitlines()
        if self.adapters.bytes:
            lines.append(f"adapters{mebibytes(self.adapters.bytes)}")
        cache = f"{self.kv_tokens} tokens of {self.bytes_per_token} bytes"
        lines.append(f"cache   {mebibytes(self.kv_cache.bytes)} for {cache}")
        if self.draft_bytes:
            lines.append(f"draft   {mebibytes(self.draft_bytes)} for the draft model")
        return "\n".join([*lines, total])
