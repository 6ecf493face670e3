"""The functions by which the GPU benchmarks time work: events of cuda.core around calls, and the
spans of single kernels by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from cuda.core import LEGACY_DEFAULT_STREAM, Device, EventOptions, Stream
from torch.profiler import ProfilerActivity, profile

Span = tuple[float, float]


def intervals_ms(
    calls: Sequence[Callable[[], object]], first: Callable[[], object] = lambda: None
) -> list[float]:
    """Returns the milliseconds between events around each of `calls`, which are put on PyTorch's
    current stream without a pause. `first` is what the stream does before."""
    device = Device(torch.cuda.current_device())
    device.set_current()
    handle = torch.cuda.current_stream().cuda_stream
    stream = Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM
    options = EventOptions(timing_enabled=True)
    events = [device.create_event(options) for _ in range(len(calls) + 1)]
    first()
    stream.record(events[0])
    for call, event in zip(calls, events[1:], strict=True):
        call()
        stream.record(event)
    events[-1].sync()
    return [end - begin for begin, end in pairwise(events)]


def named_spans(work: Callable[[], object]) -> list[tuple[float, float, str]]:
    """Returns start and end, in microseconds, and the name of every kernel of `work`.

    They come from PyTorch's profiler (CUPTI), in the order of their starts.
    """
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        work()
        torch.cuda.synchronize()
    return sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem")
    )


def kernel_spans(work: Callable[[], object], names: tuple[str, ...] = ("",)) -> list[Span]:
    """Start and end of those kernels whose name contains one of `names`."""
    return [
        (start, end)
        for start, end, kernel in named_spans(work)
        if any(name in kernel for name in names)
    ]


def kernel_ms(
    call: Callable[[], object], calls: int, names: tuple[str, ...] = ("",)
) -> list[float]:
    """Returns the milliseconds that each of `calls` calls spends in kernels whose name contains one
    of `names`.

    Time between kernels is not counted, and time in which two of them run counts once.
    """

    def work() -> None:
        for _ in range(calls):
            call()
            torch.cuda.synchronize()

    spans = kernel_spans(work, names)
    each = len(spans) // calls
    if len(spans) != each * calls or not each:
        raise RuntimeError(f"{len(spans)} kernels in {calls} calls")
    return [busy(spans[i : i + each]) / 1e3 for i in range(0, len(spans), each)]


def busy(spans: list[Span]) -> float:
    """Time during which at least one of `spans` runs; they are in the order of their starts."""
    total, latest = 0.0, 0.0
    for start, end in spans:
        total += max(0.0, end - max(start, latest))
        latest = max(latest, end)
    return total
