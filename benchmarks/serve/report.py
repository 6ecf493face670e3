"""Result files of benchmarks/serve/load.py as Markdown: `python report.py FILE`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "lib"))
from figures import Json


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _median(turns: Sequence[Json], name: str) -> float:
    return statistics.median(float(one[name]) for one in turns)


def _statuses(found: Json) -> str:
    return ", ".join(f"{count} x {status}" for status, count in sorted(found["statuses"].items()))


def _cpu(result: Json) -> list[str]:
    bulk = result["bulk"]
    rows = [
        [
            "TextModel.embed, in bulk",
            f"{_median(bulk, 'rate'):.1f}",
            "",
            "1",
            f"{_median(bulk, 'cpu_ms'):.2f}",
        ]
    ]
    for name, turns in result["saturation"].items():
        shares = [a["deducted_rate"] / b["rate"] for a, b in zip(turns, bulk, strict=True)]
        rows.append(
            [
                f"{name} connections",
                f"{_median(turns, 'rate'):.1f}",
                f"{_median(turns, 'deducted_rate'):.1f}",
                f"{statistics.median(shares):.2f}",
                f"{_median(turns, 'server_cpu_ms'):.2f}",
            ]
        )
    header = ["texts a second", "as measured", "deducted", "of bulk", "CPU ms a text"]
    parts = [_table(header, rows)]
    peers = [turns for name, turns in result["saturation"].items() if "Packhorse" not in name]
    if peers:
        ours = [turns for name, turns in result["saturation"].items() if "Packhorse" in name]
        best = [max(turns[i]["rate"] for turns in peers) for i in range(len(bulk))]
        own = [max(turns[i]["rate"] for turns in ours) for i in range(len(bulk))]
        ratio = statistics.median(a / b for a, b in zip(own, best, strict=True))
        parts.append(f"Times the best peer, median of the rounds' ratios: {ratio:.2f}")
    overhead = result["overhead"]
    parts.append(
        f"One request of {overhead['tokens']} tokens: "
        f"{statistics.median(overhead['request_ms']):.2f} ms, the session alone "
        f"{statistics.median(overhead['session_ms']):.2f} ms, the client's own time "
        f"{statistics.median(overhead['client_cpu_ms']):.2f} ms; overhead "
        f"{overhead['overhead_ms']:.2f} ms"
    )
    for title, name in (("80 % of saturation", "latency"), ("Twice saturation", "overload")):
        rows = [
            [
                f"{title}, {one['connections']} connections",
                f"{one['offered']:.1f}",
                f"{one['rate']:.1f}",
                f"{one['p50']:.0f}",
                f"{one['p99']:.0f}",
                f"{one['p99'] / max(one['p50'], 1e-9):.1f}",
                f"{one['bound_ms']:.0f}" if "bound_ms" in one else "",
                _statuses(one),
            ]
            for one in result[name]
        ]
        header = ["", "offered/s", "answered/s", "p50 ms", "p99 ms", "ratio", "bound", "answers"]
        parts.append(_table(header, rows))
    return parts


def _soak(result: Json) -> list[str]:
    memory = [mb for _, mb in result["memory"]]
    third = max(1, len(memory) // 3)
    first, last = statistics.median(memory[:third]), statistics.median(memory[-third:])
    return [
        f"{result['seconds'] / 60:.1f} minutes at twice saturation ({result['offered']:.0f} "
        f"requests a second, {result['connections']} connections): {_statuses(result)}; missing "
        f"{result['missing']}; accepted p50 {result['p50']:.0f} ms, p99 {result['p99']:.0f} ms, "
        f"bound {result['bound_ms']:.0f} ms; resident {memory[0]:.0f} MB at first, median of the "
        f"first third {first:.1f} MB, of the last {last:.1f} MB, most {max(memory):.1f} MB"
    ]


def _gpu(result: Json) -> list[str]:
    rows = [
        [
            f"{one['per_request']} texts a request, {one['connections']} connections",
            f"{one['texts_per_second']:.0f}",
            f"{one['p50']:.1f}",
            f"{one['p99']:.1f}",
            f"{one['server_cpu_ms']:.2f}",
            _statuses(one),
        ]
        for one in result["loads"]
    ]
    alone = statistics.median(result["session"])
    bulk = _median(result["bulk"], "rate")
    return [
        f"Session.run on token ids: {alone:.0f} texts/s; "
        f"TextModel.embed in bulk: {bulk:.0f} texts/s",
        _table(["", "texts/s", "p50 ms", "p99 ms", "server's CPU ms a request", "answers"], rows),
    ]


def _replicas(result: Json) -> list[str]:
    alone, rows = 0.0, []
    for count in sorted({load["devices"] for load in result["loads"]}):
        turns = [load for load in result["loads"] if load["devices"] == count]
        rate = _median(turns, "texts_per_second")
        alone = alone or rate
        rows.append(
            (
                str(count),
                f"{rate:.0f}",
                f"{rate / alone:.2f}x",
                f"{_median(turns, 'p50'):.1f}",
                f"{_median(turns, 'p99'):.1f}",
                _statuses(turns[-1]),
            )
        )
    header = ("devices", "texts/s", "of one", "p50 ms", "p99 ms", "answers")
    return ["32 texts a request", _table(header, rows)]


def report(result: Json) -> str:
    make = {"cpu": _cpu, "soak": _soak, "gpu": _gpu, "replicas": _replicas}[result["what"]]
    return "\n\n".join([f"## {result['what']}, {result['dtype']}", *make(result)])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(report(json.loads(Path(name).read_text(encoding="utf-8"))))
