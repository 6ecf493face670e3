"""Common parts of tests of packhorse.ray: a cluster, texts, and checks of an output folder."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.cluster_utils
from tiny_tokenizer import WORDS

Cluster = Any  # ray.cluster_utils.Cluster
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}  # the machine has other things to do


def start_cluster() -> Iterator[Cluster]:
    head = {**NODE, "include_dashboard": False}
    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def make_texts(count: int, seed: int = 0, longest: int = 30) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(0, longest))) for _ in range(count)]


def write_parquet(path: Path, texts: list[str | None], rows: int, first: int = 0) -> None:
    """A file with columns "id", from `first` on, and "text", in row groups of so many rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = range(first, first + len(texts))
    pq.write_table(
        pa.table({"id": ids, "text": pa.array(texts, pa.string())}), path, row_group_size=rows
    )


def read_output(folder: Path) -> pa.Table:
    """All rows of all files of results, in the order of the fragments."""
    files = sorted(folder.glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def vectors(table: pa.Table) -> np.ndarray:
    column = table["embedding"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), -1)


def workers(name: str) -> dict[int, str]:
    """The processes of actors whose class has this in its name, by their ids, with their names."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                parents = ancestors(int(entry.name))
            except (OSError, ValueError):
                continue
            if command.startswith("ray::") and name in command and os.getpid() in parents:
                found[int(entry.name)] = command
    return found


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        found.append(process)
    return found


def wait_for(condition: Callable[[], object], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
