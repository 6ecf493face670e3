"""The figures of a result file of benchmarks/cpu/encoders.py, and their plot as SVG."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from packhorse.evaluation.svg import document, line, text

Json = dict[str, Any]

PACKHORSE = "Packhorse"
DTYPES = ("float32", "bfloat16", "int8")

# The plot has one panel for each model and dtype.
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 310, 250, 52, 34, 52
# Colours that everybody can tell apart (Okabe and Ito's palette).
COLOURS = {
    PACKHORSE: "#d55e00",
    "PyTorch": "#0072b2",
    "onnxruntime": "#009e73",
    "CTranslate2": "#cc79a7",
    "OpenVINO": "#56b4e9",
}


def find(case: Json, name: str, dtype: str) -> Json | None:
    found = (one for one in case["engines"] if (one["name"], one["dtype"]) == (name, dtype))
    return next(found, None)


def tokens_per_second(case: Json, engine: Json) -> float:
    return float(case["tokens"] / statistics.median(engine["seconds"]))


def ratio(slower: Json, faster: Json) -> float:
    """The median over the rounds, because what disturbs the machine in a round affects both
    engines."""
    pairs = zip(slower["seconds"], faster["seconds"], strict=True)
    return float(statistics.median(one / other for one, other in pairs))


def _ticks(low: float, high: float) -> list[float]:
    """The numbers 1, 2 and 5 times the powers of ten between low and high."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [step for step in steps if low <= step <= high]


def _panel(cases: list[Json], dtype: str, title: str) -> list[str]:
    """Plots tokens per second, on a logarithmic scale, over the cases. Lines join cases of one
    batch size."""
    rates = {
        name: [
            tokens_per_second(case, engine) if (engine := find(case, name, dtype)) else None
            for case in cases
        ]
        for name in COLOURS
    }
    there = [rate for values in rates.values() for rate in values if rate]
    if not there:
        return []
    low, high = min(there) / 1.3, max(there) * 1.3
    bottom, right = HEIGHT - BOTTOM, WIDTH - 8

    def at_x(i: int) -> float:
        return LEFT + (right - LEFT) * (i + 0.5) / len(cases)

    def at_y(rate: float) -> float:
        return bottom - (bottom - TOP) * math.log(rate / low) / math.log(high / low)

    parts = [text((LEFT + right) / 2, 20, title, extra=' font-weight="bold"')]
    for tick in _ticks(low, high):
        parts += [line(LEFT, at_y(tick), right, at_y(tick), "#dddddd")]
        parts += [text(LEFT - 5, at_y(tick) + 4, f"{tick:,.0f}", "end")]
    for i, case in enumerate(cases):
        parts.append(text(at_x(i), bottom + 15, str(case["max_length"]), extra=' font-size="9"'))
    batches = [case["batch_size"] for case in cases]
    for batch in dict.fromkeys(batches):
        first, count = batches.index(batch), batches.count(batch)
        middle = (at_x(first) + at_x(first + count - 1)) / 2
        parts.append(text(middle, bottom + 32, f"{batch} text{'s' if batch > 1 else ''}"))
    for name, values in reversed(rates.items()):  # ours is drawn last, on top of the others
        colour, width = COLOURS[name], 2.5 if name == PACKHORSE else 1.2
        before: tuple[int, float] | None = None
        for i, rate in enumerate(values):
            if rate is None:
                before = None
                continue
            x, y = at_x(i), at_y(rate)
            if before and batches[before[0]] == batches[i]:
                parts.append(line(at_x(before[0]), at_y(before[1]), x, y, colour, width))
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2 + width / 2:g}" fill="{colour}"/>'
            )
            before = (i, rate)
    return parts


def plot(result: Json, models: Sequence[str] = ()) -> str:
    """Makes an SVG with a row of panels for each model (for all models if none is named) and a
    column for each dtype."""
    models = models or list(dict.fromkeys(case["model"] for case in result["cases"]))
    parts = []
    for row, model in enumerate(models):
        cases = [case for case in result["cases"] if case["model"] == model]
        for column, dtype in enumerate(DTYPES):
            parts.append(f'<g transform="translate({column * WIDTH} {row * HEIGHT})">')
            title = f"{dtype}, {model.partition(',')[0]}"
            parts += [*_panel(cases, dtype, title), "</g>"]
    width, height = WIDTH * len(DTYPES), HEIGHT * len(models) + 24
    for i, (name, colour) in enumerate(COLOURS.items()):
        x, y = width - 92 * (len(COLOURS) - i), height - 10
        parts.append(f'<circle cx="{x:.1f}" cy="{y - 4:.1f}" r="4" fill="{colour}"/>')
        parts.append(text(x + 8, y, name, "start"))
    note = "tokens/s (logarithmic), by batch size and longest text in tokens"
    parts.append(text(12, height - 10, note, "start"))
    return document(width, height, parts)
