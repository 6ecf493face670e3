"""Timing of products for products.py: CUDA graphs of many launches, which take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from kernel_timing import intervals_ms

cuda: Any = torch.cuda  # torch.cuda's functions have few types

COPIED_BYTES = 1 << 30
COLD_BYTES = 300_000_000  # weights rotate through so many: several times what L2 holds
LEAD_SHARE = 0.4  # part of a span that is run before it, untimed, until clocks have settled


def copies_of(size: int) -> int:
    """Number of operands of `size` bytes that keeps each of them out of L2 until its turn."""
    return max(2, -(-COLD_BYTES // size))


def launches_of(copies: int, least: int) -> int:
    """The least multiple of `copies` that is at least `least`."""
    return -(-least // copies) * copies


def capture(launch: Callable[[int], object], launches: int) -> Any:
    """Returns a graph of launch(0), launch(1) and so on, after one launch that loads the kernel."""
    graph, stream = cuda.CUDAGraph(), cuda.Stream()
    cuda.synchronize()
    with cuda.stream(stream):
        launch(0)
        stream.synchronize()
        graph.capture_begin()  # cuda.graph collects garbage first, which takes longer than all else
        for i in range(launches):
            launch(i)
        graph.capture_end()
    return graph


def timed(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Returns the microseconds of each of `calls`, which are asked for in one go."""
    return [1e3 * milliseconds for milliseconds in intervals_ms(calls)]


def copy_rate() -> float:
    """Returns the bytes that a copy on the device reads and writes in a microsecond."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda").zero_()
    target = torch.empty_like(source)

    def copy() -> object:
        return target.copy_(source)

    timed([copy] * 200)  # for clocks to rise
    return 2 * COPIED_BYTES / statistics.median(timed([copy] * 21))


Graphs = dict[str, Any]


def in_rounds(graphs: Graphs, rounds: int, stop: float) -> dict[str, float]:
    """Returns the median of each graph's microseconds over rounds in which each is replayed once,
    until there were `rounds`, or three and the clock is past `stop`. The first in line changes from
    round to round, and one round before is not counted."""
    names = list(graphs)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for done in range(-1, rounds):
        if done >= 3 and time.monotonic() > stop:
            break
        order = names[done % len(names) :] + names[: done % len(names)]
        times = timed([graphs[name].replay for name in order])
        for name, us in zip(order, times, strict=True):
            if done >= 0:
                samples[name].append(us)
    return {name: statistics.median(times) for name, times in samples.items()}


def sustained(graphs: Graphs, turns: int, seconds: float) -> dict[str, float]:
    """Returns the median of each graph's microseconds over `turns` turns, in each of which it is
    replayed again and again: for 0.4 of `seconds`, and then for `seconds`, which are counted."""
    counts = {}
    for name, graph in graphs.items():
        _, us = timed([graph.replay, graph.replay])
        counts[name] = max(1, round(1e6 * seconds / us))

    def replay(name: str, share: float = 1) -> None:
        for _ in range(max(1, round(share * counts[name]))):
            graphs[name].replay()

    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(turns):
        for name in graphs:
            _, us = timed([partial(replay, name, LEAD_SHARE), partial(replay, name)])
            samples[name].append(us / counts[name])
    return {name: statistics.median(times) for name, times in samples.items()}


def table_line(cells: Sequence[object]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table_head(header: Sequence[str]) -> str:
    return table_line(header) + "\n" + "|" + "---|" + "---:|" * (len(header) - 1)
