"""How the GPU benchmarks time kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def kernel_ms(
    call: Callable[[], object], calls: int, names: tuple[str, ...] = ("",)
) -> list[float]:
    """Milliseconds of each of `calls` calls in kernels that have one of `names` in theirs.

    As PyTorch's profiler (CUPTI) sees them: without what lies between them.
    """
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(calls):
            call()
            torch.cuda.synchronize()
    times = [
        (event.time_range.start, event.time_range.elapsed_us())
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith("Mem")
        and any(name in event.name for name in names)
    ]
    each = len(times) // calls
    if len(times) != each * calls or not each:
        raise RuntimeError(f"{len(times)} kernels in {calls} calls")
    in_order = [time for _, time in sorted(times)]
    return [sum(in_order[i : i + each]) / 1e3 for i in range(0, len(in_order), each)]
