"""The plot of an evaluation: a histogram for each dtype, as bins and as SVG."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packhorse.evaluation import svg
from packhorse.evaluation.measures import Comparison, Evaluation, Spread

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330, 276, 50, 14, 66, 46
_BINS, _LINES = 30, 2  # bins of a histogram; lines of measures above it
_LONGEST = 50  # characters of a name
_COLOURS = {"close": "#009e73", "usable": "#e69f00", "far": "#d55e00"}  # Okabe and Ito's palette


class Bins(NamedTuple):
    """Histogram: counts [n] of the values between edges [n + 1]."""

    counts: list[int]
    edges: list[float]


def bins_of(spread: Spread, number: int) -> Bins:
    """Histogram of `number` bins of one width, from the smallest value to the largest; what is not
    finite is left out. It has one bin where all values are the same to 12 digits, none where there
    are no values."""
    values = spread.values[np.isfinite(spread.values)]
    if not values.size:
        return Bins([], [])
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        return Bins([values.size], [low, high])
    counts, edges = np.histogram(values, number, (low, high))
    return Bins(counts.tolist(), edges.tolist())


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers from low to high."""
    rough = (high - low) / 4
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    first = int(np.ceil(low / step - 1e-9))
    return [i * step for i in range(first, int(np.floor(high / step + 1e-9)) + 1)]


def _panel(comparison: Comparison) -> list[str]:
    bins = bins_of(comparison.spread, _BINS)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    middle = (LEFT + right) / 2
    title = f"{comparison.dtype} on {comparison.device}: {comparison.verdict}"
    graded = [one for one in comparison.measures if one.grade is not None][:_LINES]
    parts = [
        svg.text(middle, 18, title, extra=' font-weight="bold"'),
        *(
            svg.text(middle, 34 + 14 * i, f"{one.title}: {one.value:.5g}")
            for i, one in enumerate(graded)
        ),
        svg.line(LEFT, bottom, right, bottom, "#888888"),
        svg.text(middle, HEIGHT - 12, comparison.spread.title),
    ]
    if not bins.counts:
        return [*parts, svg.text(middle, (TOP + bottom) / 2, "no finite values")]
    low, high, most = bins.edges[0], bins.edges[-1], max(bins.counts)
    several = len(bins.counts) > 1
    width = (right - LEFT) / len(bins.counts)
    for i, count in enumerate(bins.counts):
        size = (bottom - TOP) * count / most
        colour = _COLOURS[comparison.verdict]
        parts.append(svg.box(LEFT + i * width, bottom - size, width - 1, size, colour))
    for tick in _ticks(low, high) if several else [low]:
        at = LEFT + (right - LEFT) * ((tick - low) / (high - low) if several else 0.5)
        parts.append(svg.line(at, bottom, at, bottom + 4, "#888888"))
        parts.append(svg.text(at, bottom + 16, f"{tick:.6g}"))
    for count in (0, most):
        y = bottom - (bottom - TOP) * count / most
        parts.append(svg.text(LEFT - 5, y + 4, f"{count:,}", "end"))
    return parts


def draw(evaluation: Evaluation) -> str:
    """An SVG file with a histogram for each dtype."""
    parts = []
    for i, comparison in enumerate(evaluation.comparisons):
        parts += [f'<g transform="translate({i * WIDTH} 0)">', *_panel(comparison), "</g>"]
    width = WIDTH * max(1, len(evaluation.comparisons))
    name, source = (
        whole if len(whole) <= _LONGEST else f"...{whole[3 - _LONGEST :]}"
        for whole in (evaluation.model, evaluation.source)
    )
    notes = (f"{name} beside float32", f"{evaluation.task}, {evaluation.count:,} texts: {source}")
    for i, note in enumerate(notes):
        parts.append(svg.text(12, HEIGHT + 10 + 12 * i, note, "start", ' font-size="9"'))
    return svg.document(width, HEIGHT + 30, parts)
