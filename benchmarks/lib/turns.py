"""Calls that take turns, what their times say of each other, and failures that are told and
survived.

Lines are flushed as they are printed, so that a run that is cut off has told what it has found.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

Times = dict[str, list[float]]  # by name of a call: seconds of each round
Result = TypeVar("Result")

_BEGIN = time.perf_counter()


def say(text: str) -> None:
    """Prints a line, after the seconds since the program began."""
    print(f"[{elapsed():4.0f} s] {text}", flush=True)


def elapsed() -> float:
    return time.perf_counter() - _BEGIN


def guarded(what: str, call: Callable[[], Result]) -> Result | None:
    """The result of `call`; None where it fails, after a line that says why."""
    try:
        return call()
    except Exception as error:  # one engine that fails must not end the others
        text = " ".join(str(error).split())
        say(f"{what} left out: {type(error).__name__}: {text[:400]}")
        return None


def take_turns(calls: Mapping[str, Callable[[], Any]], seconds: float, rounds: int = 3) -> Times:
    """Times rounds in which each call has its turn, in an order that goes round; the first turn of
    each is not counted. There are `rounds` at least, and more until `seconds` are over.

    A call that fails is told, and left out from then on.
    """
    working = {name: call for name, call in calls.items() if guarded(name, partial(_done, call))}
    times: Times = {name: [] for name in working}
    end = time.perf_counter() + seconds
    round_ = 0
    while working and (round_ < rounds or (time.perf_counter() < end and round_ < 1000)):
        names = list(working)
        for step in range(len(names)):
            name = names[(round_ + step) % len(names)]
            start = time.perf_counter()
            if not guarded(name, partial(_done, working[name])):
                del working[name], times[name]
                break
            times[name].append(time.perf_counter() - start)
        else:
            round_ += 1
            continue
        for samples in times.values():  # rounds of all that are left have equal numbers of turns
            del samples[round_:]
    return times


def _done(call: Callable[[], Any]) -> bool:
    call()
    return True


def medians(times: Times) -> dict[str, float]:
    return {name: statistics.median(samples) for name, samples in times.items() if samples}


def ratio(times: Times, slow: str, fast: str, factor: float = 1.0) -> float | None:
    """The median, over rounds, of the time of `slow` over that of `fast`, times `factor`; None
    where one of them was left out."""
    if not times.get(slow) or not times.get(fast):
        return None
    pairs = zip(times[slow], times[fast], strict=True)
    return factor * statistics.median(a / b for a, b in pairs)


def against_mark(found: float | None, mark: float, unit: str = "x") -> str:
    if found is None:
        return "not measured"
    return f"{found:.2f}{unit} (mark {mark:g}{unit}: {'reached' if found >= mark else 'missed'})"


def asked() -> list[str]:
    """The program's arguments, but for where its result goes."""
    given = sys.argv[1:]
    return [
        one
        for one, before in zip(given, ["", *given], strict=False)
        if "--out" not in (one, before)
    ]


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
