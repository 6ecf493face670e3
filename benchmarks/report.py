"""A result file of benchmarks/cpu.py as Markdown: python benchmarks/report.py FILE."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from engines import ONE_TOKEN_SEQUENCES, PACKHORSE, PRODUCTS_ALONE

Json = dict[str, Any]


def _find(case: Json, name: str, dtype: str) -> Json | None:
    found = (one for one in case["engines"] if (one["name"], one["dtype"]) == (name, dtype))
    return next(found, None)


def tokens_per_second(case: Json, engine: Json) -> float:
    return float(case["tokens"] / statistics.median(engine["seconds"]))


def ratio(slower: Json, faster: Json) -> float:
    """Median over the rounds: what disturbs the machine in one round disturbs both in it."""
    pairs = zip(slower["seconds"], faster["seconds"], strict=True)
    return float(statistics.median(one / other for one, other in pairs))


def _cell(case: Json, name: str, dtype: str) -> str:
    engine, ours = _find(case, name, dtype), _find(case, PACKHORSE, dtype)
    if engine is None:
        return "-"
    text = f"{tokens_per_second(case, engine):,.0f}"
    if ours is None or ours is engine:
        return text
    return f"{text} ({ratio(engine, ours):.2f})"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(header: list[str], rows: list[list[str]]) -> str:
    rule = "|---|" + "---:|" * (len(header) - 1)
    return "\n".join([_row(header), rule, *map(_row, rows)])


def speed(result: Json) -> str:
    cases = result["cases"]
    order = {"float32": 0, "bfloat16": 1, "int8": 2}
    kinds = dict.fromkeys(
        (engine["name"], engine["dtype"])
        for case in cases
        for engine in case["engines"]
        if engine["is_encoder"]
    )
    header = ["tokens/s (how many times faster Packhorse is, same dtype)"]
    header += [
        f"{case['name']} ({case['tokens']:,} tokens, {case['tokens'] / case['padded_tokens']:.0%} "
        "of padded)"
        for case in cases
    ]
    rows = [
        [f"{name} {dtype}", *(_cell(case, name, dtype) for case in cases)]
        for name, dtype in sorted(kinds, key=lambda kind: order[kind[1]])
    ]
    return _table(header, rows)


def limits(result: Json) -> str:
    """Shares of Packhorse's time."""
    rows = []
    for case in result["cases"]:
        for dtype in ("float32", "bfloat16", "int8"):
            ours = _find(case, PACKHORSE, dtype)
            flat = _find(case, ONE_TOKEN_SEQUENCES, dtype)
            products = _find(case, PRODUCTS_ALONE, dtype)
            if ours is None or flat is None or products is None:
                continue
            rate = tokens_per_second(case, products) * case["flop_per_token"] / 1e9
            rows.append(
                [
                    f"{case['name']}, {dtype}",
                    f"{rate:,.0f}",
                    f"{ratio(products, ours):.0%}",
                    f"{1 - ratio(flat, ours):.0%}",
                ]
            )
    return _table(
        ["", "GFLOP/s of the products alone", "their share of the time", "attention's share"], rows
    )


def accuracy(result: Json) -> str:
    """Against the reference, over all cases."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for case in result["cases"]:
        for engine in case["engines"]:
            if engine["is_encoder"]:
                kind = (engine["name"], engine["dtype"])
                error, cosine = worst.get(kind, (0.0, 1.0))
                worst[kind] = (
                    max(error, engine["max_abs_error"]),
                    min(cosine, engine["min_cosine"]),
                )
    rows = [
        [f"{name} {dtype}", f"{error:.1e}", f"{cosine:.5f}"]
        for (name, dtype), (error, cosine) in worst.items()
    ]
    reference = f"against {result['reference']}"
    return _table([reference, "largest error", "smallest cosine of a mean-pooled sequence"], rows)


def markdown(result: Json) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return "\n\n".join(
        [
            f"{machine['processor']}, {', '.join(machine['isa'])}; {result['threads']} threads on "
            f"{machine['cores']} cores; load before the run {machine['load_average']:.1f}; "
            f"{result['date']}; medians of {result['rounds']} interleaved rounds.",
            f"{versions}.",
            speed(result),
            limits(result),
            accuracy(result),
        ]
    )


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
