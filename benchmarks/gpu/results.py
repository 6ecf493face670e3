"""Writes the results of the GPU benchmarks: Markdown, and result files that say where they come
from."""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import packhorse
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
from gpu_receipt import driver_version

RESULTS = Path(__file__).resolve().parents[1] / "results"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def versions() -> dict[str, str]:
    found = {"packhorse": packhorse.__version__, "python": sys.version.split()[0]}
    for name in ("torch", "transformers", "triton", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "CUDA of torch": str(torch.version.cuda)}


def command() -> str:
    """The command that is running, without the path of its result."""
    words = [
        word
        for before, word in pairwise(["python", *sys.argv])
        if before != "--out" and not word.startswith("--out")
    ]
    return " ".join(["python", *words])


def result_of(**content: Any) -> dict[str, Any]:
    """Returns `content`, preceded by the machine, the versions and the command that it comes
    from."""
    properties = torch.cuda.get_device_properties(0)
    machine = {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "driver": driver_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    start = {"date": date, "command": command(), "machine": machine, "versions": versions()}
    return {**start, **content}


def origin(result: dict[str, Any]) -> str:
    """The line above the tables of a result."""
    machine = result["machine"]
    libraries = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    where = f"{machine['device']}, driver {machine['driver']}; {libraries}"
    return f"{where}; {result['date']}; `{result['command']}`."


def write(result: dict[str, Any], kind: str, out: Path | None) -> None:
    """Writes a result to `out`, or to a file named after its kind, the machine and the day."""
    chip = re.sub(r"[^a-z0-9]+", "-", result["machine"]["device"].lower()).strip("-")
    name = f"{kind}_{chip.removeprefix('nvidia-')}_{result['date']}.json"
    path = out or RESULTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\nWritten to {path}")
