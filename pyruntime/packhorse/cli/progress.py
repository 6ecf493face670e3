"""Shows progress on stderr, but only if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

Report = Callable[[int, int | None], None]


@contextmanager
def byte_progress(what: str) -> Iterator[Report]:
    """Yields a function report(bytes done, bytes in total or None if unknown)."""
    with _progress(what, DownloadColumn()) as report:
        yield report


@contextmanager
def count_progress(what: str) -> Iterator[Report]:
    """Yields a function report(number done, number in total or None if unknown)."""
    with _progress(what, MofNCompleteColumn()) as report:
        yield report


@contextmanager
def seconds_progress(what: str) -> Iterator[Report]:
    """Yields a function report(seconds of audio done, seconds in total or None if unknown)."""
    with _progress(what, TextColumn("{task.completed:.0f} of {task.total:.0f} s")) as report:
        yield report


@contextmanager
def _progress(what: str, amount: ProgressColumn) -> Iterator[Report]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn(what), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
