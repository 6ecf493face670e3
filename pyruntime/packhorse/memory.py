"""The memory plan, which says exactly how much memory a session will use before any is
allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packhorse._native.session import Allocation as NativeAllocation


@dataclass(frozen=True)
class PlannedBuffer:
    """One named buffer. Buffers whose lifetimes do not overlap may share bytes."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class PlannedAllocation:
    bytes: int
    buffers: tuple[PlannedBuffer, ...]

    @classmethod
    def from_native(cls, allocation: NativeAllocation) -> PlannedAllocation:
        """The allocation of (bytes, buffers) as the runtime gives it."""
        size, buffers = allocation
        return cls(size, tuple(PlannedBuffer(*buffer) for buffer in buffers))


def mebibytes(count: int) -> str:
    """Formats bytes as plans show them."""
    return f"{count / 2**20:10.2f} MiB"


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of a session. Sessions on one device may share `weights`; each has an `arena` of its
    own."""

    weights: PlannedAllocation
    arena: PlannedAllocation

    @property
    def total_bytes(self) -> int:
        """The bytes of weights and arena together."""
        return self.weights.bytes + self.arena.bytes

    @staticmethod
    def from_native(plan: tuple[NativeAllocation, NativeAllocation]) -> MemoryPlan:
        """Makes a plan from (weights, arena) as the runtime returns them."""
        weights, arena = plan
        return MemoryPlan(
            PlannedAllocation.from_native(weights), PlannedAllocation.from_native(arena)
        )

    def __str__(self) -> str:
        lines = [
            f"weights {mebibytes(self.weights.bytes)}",
            f"arena   {mebibytes(self.arena.bytes)}",
        ]
        lines += [
            f"  {mebibytes(buffer.bytes)} at {buffer.offset:<12} {buffer.name}"
            for buffer in self.arena.buffers
        ]
        lines.append(f"total   {mebibytes(self.total_bytes)}")
        return "\n".join(lines)
