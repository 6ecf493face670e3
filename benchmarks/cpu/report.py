"""Prints a result file of benchmarks/cpu/encoders.py as Markdown, and plots it.

python benchmarks/cpu/report.py FILE [--plot FILE.svg [--models NAME ...]]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from figures import DTYPES, PACKHORSE, Json, find, plot, ratio, tokens_per_second

PARTS = ("product", "attention", "norm", "quantize", "other", "waiting")


def _cell(case: Json, name: str, dtype: str) -> str:
    engine, ours = find(case, name, dtype), find(case, PACKHORSE, dtype)
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


def speed(result: Json, model: str) -> str:
    """The table of speeds, with a row for each case and dtype and a column for each engine."""
    cases = [case for case in result["cases"] if case["model"] == model]
    names = list(dict.fromkeys(engine["name"] for case in cases for engine in case["engines"]))
    rows = []
    for dtype in DTYPES:
        for case in cases:
            if find(case, PACKHORSE, dtype) is None:
                continue
            size = f"{dtype}, {case['batch_size']} x <= {case['max_length']}"
            full = f"{case['tokens'] / case['padded_tokens']:.0%}"
            cells = [_cell(case, name, dtype) for name in names]
            best = best_ratio(case, dtype)
            rows.append([size, full, *cells, f"{best:.2f}" if best else "-"])
    header = [f"{model}, tokens/s", "full", *names, "Packhorse / best"]
    return _table(header, rows)


def best_ratio(case: Json, dtype: str) -> float | None:
    """Speed of Packhorse, divided by that of the fastest peer."""
    ours = find(case, PACKHORSE, dtype)
    peers = [
        engine
        for engine in case["engines"]
        if engine["dtype"] == dtype and engine["name"] != PACKHORSE
    ]
    if ours is None or not peers:
        return None
    return min(ratio(peer, ours) for peer in peers)


def limits(result: Json) -> str:
    """The table of where Packhorse's time goes, for batches of 32 and the usual length."""
    rows = []
    for case in result["cases"]:
        if case["batch_size"] != 32 and case["max_length"] != 256:
            continue
        for dtype, seconds in case["profiles"].items():
            rate = case["tokens"] * case["flop_per_token"] / seconds["product"]
            wall = seconds["wall"]
            rows.append(
                [
                    f"{case['name']}, {dtype}",
                    f"{rate / 1e9:,.0f}",
                    f"{rate / result['peaks'][dtype]:.0%}",
                    *(f"{seconds[part] / wall:.0%}" for part in PARTS),
                ]
            )
    header = ["", "G(FL)OP/s of the products", "of the peak", *PARTS]
    peaks = ", ".join(f"{dtype} {peak / 1e9:,.0f}" for dtype, peak in result["peaks"].items())
    return f"Fastest large products, G(FL)OP/s: {peaks}.\n\n" + _table(header, rows)


def accuracy(result: Json) -> str:
    """The table of errors against the reference, over all cases."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for case in result["cases"]:
        for engine in case["engines"]:
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


def texts(result: Json) -> str:
    """The table of texts to embeddings, with a row for each dtype. A result file need not have
    it."""
    case = result["texts"]
    names = list(dict.fromkeys(engine["name"] for engine in case["engines"]))
    rows = []
    for dtype in DTYPES:
        if find(case, PACKHORSE, dtype) is None:
            continue
        cosines = [
            f"{engine['min_cosine']:.5f}" if (engine := find(case, name, dtype)) else "-"
            for name in names
        ]
        rows.append([dtype, *(_cell(case, name, dtype) for name in names), *cosines])
    padded, ordered = (case[key] / case["tokens"] for key in ("padded_tokens", "sorted_tokens"))
    header = ["tokens/s, texts to embeddings", *names, *(f"cosine, {name}" for name in names)]
    return (
        f"{case['model']}, {case['texts']:,} texts of {case['tokens']:,} tokens. Padded in batches "
        f"of 32 they would be {padded:.2f} times as many tokens in the order given, and "
        f"{ordered:.2f} times sorted by length. Smallest cosines are to {case['reference']}.\n\n"
        + _table(header, rows)
    )


def markdown(result: Json) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    measured = [*result["cases"], *([result["texts"]] if "texts" in result else [])]
    clock = " of the processor's time" if result.get("clock") == "cpu" else ""
    rounds = [len(one["seconds"]) for case in measured for one in case["engines"]]
    models = dict.fromkeys(case["model"] for case in result["cases"])
    return "\n\n".join(
        [
            f"{machine['processor']}, {', '.join(machine['isa'])}; {result['threads']} threads on "
            f"{machine['cores']} cores; load before the run {machine['load_average']:.1f}; "
            f"{result['date']}; medians of {min(rounds)} to {max(rounds)} interleaved rounds"
            f"{clock}.",
            f"{versions}.",
            *([texts(result)] if "texts" in result else []),
            *(speed(result, model) for model in models),
            *([limits(result), accuracy(result)] if result["cases"] else []),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--plot", type=Path, metavar="SVG", help="write a plot, too")
    parser.add_argument("--models", nargs="+", default=(), help="in the plot; by default all")
    arguments = parser.parse_args()
    result = json.loads(arguments.file.read_text(encoding="utf-8"))
    if arguments.plot:
        arguments.plot.write_text(plot(result, arguments.models), encoding="utf-8")
    print(markdown(result))


if __name__ == "__main__":
    main()
