"""A line on the terminal that says how far a long call has come, or how long it has taken."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, ParamSpec, TypeVar

# Function of (texts done, texts in total or None), or whether a bar is shown; None stands for a bar
# where stderr is a terminal and the call takes long.
Progress = Callable[[int, int | None], object] | bool
Arguments = ParamSpec("Arguments")
Loaded = TypeVar("Loaded")
_EVERY_S = 0.1
_CELLS = 24  # characters of a bar
_LONG_S = 2.0  # for shorter calls nobody needs a bar


class ProgressBar:
    """Writes to stderr, from the first report on that comes after so many seconds, unless that is
    the last one. `close` ends the line. `what`: what is counted."""

    def __init__(self, after_s: float = 0.0, what: str = "texts") -> None:
        self._what = what
        self._begin = monotonic()
        self._next_s = after_s
        self._waits = after_s > 0
        self._shown = False
        self._length = 0  # characters of the line that is shown

    def __call__(self, done: int, total: int | None) -> None:
        seconds = monotonic() - self._begin
        ended = done == total
        if self._waits and not self._shown and (ended or seconds < self._next_s):
            return
        if seconds < self._next_s and not ended:
            return
        self._next_s = seconds + _EVERY_S
        rate = done / max(seconds, 1e-9)
        of_all = "" if total is None else f" of {total:,}"
        self.write(f"{done:,}{of_all} {self._what} ({rate:,.0f}/s)")

    def write(self, text: str) -> None:
        """The line, in place of what it was."""
        self._shown = True
        print(f"\r{text.ljust(self._length)} ", end="", file=sys.stderr, flush=True)
        self._length = len(text)

    def close(self) -> None:
        if self._shown:
            print(file=sys.stderr)


def _is_wanted(asked: bool | None) -> bool:
    if asked is None:
        return sys.stderr is not None and sys.stderr.isatty()
    return asked


@contextmanager
def reporting(
    progress: Progress | None, what: str = "texts"
) -> Iterator[Callable[[int, int | None], object] | None]:
    """The function to call with (texts done, texts in total or None); None: there is none. `what`:
    what is counted, if no texts are. Raises ValueError for what is no progress."""
    if progress is not None and not isinstance(progress, bool):
        if not callable(progress):
            raise ValueError(
                f"progress is {progress!r:.80}, expected a function of ({what} done, {what} in "
                "total), True or False"
            )
        yield progress
    elif _is_wanted(progress):
        bar = ProgressBar(0.0 if progress else _LONG_S, what)
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield None


def _loaded() -> str:
    """A bar of the weights that are there, as the runtime says."""
    native = sys.modules.get("packhorse._native.session")
    done, total = (0, 0) if native is None else native.load_progress()
    if not total:
        return ""
    filled = _CELLS * done // total
    bar = "#" * filled + "." * (_CELLS - filled)
    return f" [{bar}] {100 * done // total:3} % of {total / 1e6:,.0f} MB,"


@contextmanager
def _waiting(what: str, asked: bool | None) -> Iterator[None]:
    """Shows a bar and counts the seconds on stderr, once they are more than `_LONG_S`."""
    if not _is_wanted(asked):
        yield
        return
    ended = Event()
    bar = ProgressBar()

    def count() -> None:
        begin = monotonic()
        wait_s = _LONG_S
        while not ended.wait(wait_s):
            wait_s = _EVERY_S
            bar.write(f"{what}:{_loaded()} {monotonic() - begin:.0f} s")

    thread = Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        bar.close()


def _download(path: Any, revision: Any) -> None:
    """Downloads, which have a bar of their own, come before the seconds are counted."""
    if isinstance(path, str | PathLike) and not Path(path).exists():
        from packhorse_weights import find_model

        find_model(path, revision)


def shows_loading(load: Callable[Arguments, Loaded]) -> Callable[Arguments, Loaded]:
    """Decorator of a class method `load`, whose first argument is a model's path and whose
    `progress` says whether the seconds are counted: None: on a terminal."""

    @functools.wraps(load)
    def shown(*given: Arguments.args, **options: Arguments.kwargs) -> Loaded:
        path = given[1] if len(given) > 1 else options.get("path")
        asked = options.get("progress")
        if not isinstance(asked, bool | None):
            raise ValueError(f"progress is {asked!r:.80}, expected True or False")
        if _is_wanted(asked):
            _download(path, options.get("revision"))
        with _waiting(f"loading {path}", asked):
            return load(*given, **options)

    return shown
