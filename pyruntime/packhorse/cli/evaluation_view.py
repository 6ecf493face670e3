"""Output of `packhorse evaluate` in a terminal."""

from __future__ import annotations

import sys
from itertools import pairwise

from packhorse.cli.tables import show_sections
from packhorse.evaluation import Comparison, Evaluation, Measure
from packhorse.evaluation.figure import bins_of

_BINS, _WIDTH = 10, 30  # rows of a histogram, and the characters of its longest one
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MEANING = {
    "close": "close to float32",
    "usable": "usable; try it on the task itself",
    "far": "far from float32",
}


def _value(measure: Measure) -> str:
    digits = 5 if abs(measure.value) < 10 else 2
    grade = "" if measure.grade in (None, "close") else f"   ({measure.grade})"
    return f"{measure.value:,.{digits}f}{grade}"


def _bar(count: int, most: int) -> str:
    """The length of the bar says the count; a count above zero is seen."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    eighths = max(round(8 * _WIDTH * count / most), count > 0)
    if not encoding.startswith("utf"):
        return "#" * -(-eighths // 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _histogram(comparison: Comparison) -> dict[str, str]:
    bins = bins_of(comparison.spread, _BINS)
    digits = max(5, _needed_digits(bins.edges))
    return {
        f"{low:.{digits}f} to {high:.{digits}f}": f"{_bar(count, max(bins.counts))} {count:,}"
        for count, (low, high) in zip(bins.counts, pairwise(bins.edges), strict=True)
    }


def _needed_digits(edges: list[float]) -> int:
    """Digits after the point at which neighbouring edges differ, up to 12."""
    pairs = list(pairwise(edges))
    return next((n for n in range(12) if all(f"{a:.{n}f}" != f"{b:.{n}f}" for a, b in pairs)), 12)


def show(evaluation: Evaluation) -> None:
    """Prints the numbers, the histogram and the verdict of each dtype to stdout."""
    sections = {
        "": {
            "compared": f"{evaluation.task}, {evaluation.count:,} texts: {evaluation.source}",
            "texts": f"SHA-256 {evaluation.digest}",
        }
    }
    if evaluation.reference != evaluation.model:
        sections[""]["float32"] = evaluation.reference
    for one in evaluation.comparisons:
        name = f"{one.dtype} on {one.device} beside float32 on cpu"
        verdict = _MEANING[one.verdict]
        if one.reasons:
            verdict += ": " + ", ".join(measure.title for measure in one.reasons)
        measures = {measure.title: _value(measure) for measure in one.measures}
        sections[name] = {**measures, "verdict": verdict}
        sections[f"{one.dtype}: {one.spread.title}"] = _histogram(one)
    show_sections(evaluation.model, sections)
