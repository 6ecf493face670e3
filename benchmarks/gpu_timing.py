"""How the GPU benchmarks time kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def kernel_ms(
    call: Callable[[], object], calls: int, names: tuple[str, ...] = ("",)
) -> list[float]:
    """Milliseconds of each of `calls` calls in kernels that have one of `names` in theirs.

    As PyTorch's profiler (CUPTI) sees them: without what lies between them, and once where two of
    them run at the same time.
    """
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(calls):
            call()
            torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith("Mem")
        and any(name in event.name for name in names)
    )
    each = len(spans) // calls
    if len(spans) != each * calls or not each:
        raise RuntimeError(f"{len(spans)} kernels in {calls} calls")
    return [busy(spans[i : i + each]) / 1e3 for i in range(0, len(spans), each)]


def busy(spans: list[tuple[float, float]]) -> float:
    """How long at least one of `spans`, in the order of their starts, lasts."""
    total, latest = 0.0, 0.0
    for start, end in spans:
        total += max(0.0, end - max(start, latest))
        latest = max(latest, end)
    return total
