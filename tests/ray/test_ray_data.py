"""Embedding on a cluster, with workers, drivers and machines that die midway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import packhorse.ray
import pytest
import ray
import ray.data
from ray_support import (
    Cluster,
    kill,
    make_texts,
    read_output,
    vectors,
    wait_for,
    workers,
    write_parquet,
)

LOAD = {"threads": 1}
SMALL = {"fragment_bytes": 1, "load": LOAD, "num_cpus": 1}  # a fragment for each row group


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of 30 row groups with 200 rows each."""
    texts = make_texts(12_000)
    write_parquet(tmp_path / "in/a.parquet", texts[:6000], rows=200)
    write_parquet(tmp_path / "in/more/b.parquet", texts[6000:], rows=200, first=6000)
    return tmp_path


def check(output: Path, model: Path, texts: list[str]) -> None:
    """Every row is there, once, in order, with the bits of `TextModel.embed`; and nothing else."""
    found = read_output(output)
    assert found["id"].to_pylist() == list(range(len(texts)))
    assert found["text"].to_pylist() == texts
    with packhorse.TextModel.load(model, **LOAD) as plain:
        assert vectors(found).tobytes() == plain.embed(texts).tobytes()
    parts = [path.name for path in sorted(output.iterdir())]
    assert parts[0] == "_plan.json"
    assert all(name.startswith("part-") for name in parts[1:])


def test_folders_of_parquet(cluster: Cluster, model: Path, folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    found = packhorse.ray.embed(
        folder / "in", model, output=folder / "out", progress=lambda *c: calls.append(c), **SMALL
    )
    assert found == packhorse.ray.Embedded(str(folder / "out"), 60, 0, 12_000)
    assert calls == [(i, 60) for i in range(1, 61)]
    check(folder / "out", model, make_texts(12_000))
    again = packhorse.ray.embed(folder / "in", model, output=folder / "out", **SMALL)
    assert again == packhorse.ray.Embedded(str(folder / "out"), 60, 60, 0)
    # Ray's own reader sees the rows alone.
    assert ray.data.read_parquet(str(folder / "out")).count() == 12_000


def test_a_worker_is_killed(cluster: Cluster, model: Path, folder: Path) -> None:
    before: set[int] = set()
    seen: set[int] = set()

    def progress(done: int, total: int) -> None:
        there = set(workers("FragmentWorker"))
        if done in (5, 25):
            before.update(there)
            kill(min(there))
        seen.update(there)

    found = packhorse.ray.embed(
        folder / "in", model, output=folder / "out", workers=2, progress=progress, **SMALL
    )
    assert found.fragments == 60
    assert seen - before, "no worker took the place of the one that was killed"
    check(folder / "out", model, make_texts(12_000))


DRIVER = """
import sys, json, ray, packhorse.ray
address, inputs, model, output, options = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
packhorse.ray.embed(inputs, model, output=output, workers=2, **json.loads(options))
"""


def test_the_driver_is_killed(cluster: Cluster, model: Path, folder: Path) -> None:
    output = folder / "out"
    options = json.dumps(SMALL)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address, folder / "in", model, output, options]
    )
    try:
        wait_for(lambda: len(list(output.glob("part-*"))) >= 5)
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: not workers("FragmentWorker"))  # Ray ends what belonged to it
    done = len(list(output.glob("part-*")))
    assert done < 60
    found = packhorse.ray.embed(folder / "in", model, output=output, workers=2, **SMALL)
    assert (found.fragments, found.skipped, found.rows) == (60, done, (60 - done) * 200)
    check(output, model, make_texts(12_000))


def test_a_dataset_is_copied_first(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    texts = make_texts(500)
    rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
    dataset = ray.data.from_items(rows, override_num_blocks=3)
    output = tmp_path / "out"
    found = packhorse.ray.embed(dataset, model, output=output, **SMALL)
    assert found.rows == 500
    assert not (output / "_input").exists()
    table = read_output(output).sort_by("id")
    assert table["text"].to_pylist() == texts
    with packhorse.TextModel.load(model, **LOAD) as plain:
        assert vectors(table).tobytes() == plain.embed(texts).tobytes()
    assert packhorse.ray.embed(dataset, model, output=output, **SMALL).skipped == found.fragments


def test_an_embedder_in_a_pipeline(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    texts = make_texts(300)
    write_parquet(tmp_path / "a.parquet", texts, rows=100)
    for batch_format in ("numpy", "pyarrow"):
        dataset = ray.data.read_parquet(str(tmp_path / "a.parquet")).map_batches(
            packhorse.ray.Embedder,
            fn_constructor_kwargs={"model": str(model), "load": LOAD},
            batch_size=64,
            batch_format=batch_format,
            compute=ray.data.ActorPoolStrategy(size=1),  # the other CPU reads
        )
        rows = sorted(dataset.take_all(), key=lambda row: row["id"])
        with packhorse.TextModel.load(model, **LOAD) as plain:
            expected = plain.embed(texts)
        found = np.array([row["embedding"] for row in rows], np.float32)
        assert found.tobytes() == expected.tobytes()


def test_bad_files_do_not_stop_the_others(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    inputs, output = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    (inputs / "a.txt").write_text("the cat\nsat\n")
    (inputs / "b.txt").write_bytes(b"\xff\n")
    (inputs / "c.jsonl").write_text('{"text": "on the mat"}\n')
    for _ in range(2):
        with pytest.raises(RuntimeError, match="1 of 4 fragments failed.*b.txt .bytes 0 to 2."):
            packhorse.ray.embed(inputs, model, output=output, **SMALL)
        assert len(read_output(output)) == 3
    (inputs / "b.txt").write_bytes(b"a\n")
    found = packhorse.ray.embed(inputs, model, output=output, **SMALL)
    assert (found.skipped, found.rows) == (3, 1)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"column": "body"}, ValueError, "a.parquet: no column 'body', found: id, text"),
        ({"dtype": "int8"}, ValueError, 'dtype="int8" needs ranges'),
        ({"fragment_bytes": 0}, ValueError, "fragment_bytes is 0"),
        ({"num_cpus": 0}, ValueError, "num_cpus is 0"),
        ({"num_gpus": 1}, ValueError, "no machine of the cluster has 1 CPUs and 1 GPUs"),
        ({"embedding_column": "id"}, RuntimeError, "the input has a column 'id' already"),
    ],
)
def test_refusals(
    cluster: Cluster,
    model: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    write_parquet(tmp_path / "a.parquet", ["the cat"], rows=1)
    with pytest.raises(error, match=message):
        packhorse.ray.embed(
            tmp_path / "a.parquet", model, output=tmp_path / "out", **{**SMALL, **changes}
        )


def test_a_model_that_is_not_there(cluster: Cluster, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["the cat"], rows=1)
    message = "the workers cannot go on: FileNotFoundError: no-such-model: no such file or folder"
    with pytest.raises(RuntimeError, match=message):
        packhorse.ray.embed(tmp_path / "a.parquet", "no-such-model", output=tmp_path / "o", **SMALL)


def test_other_settings_need_another_folder(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["the cat"], rows=1)
    packhorse.ray.embed(tmp_path / "a.parquet", model, output=tmp_path / "out", **SMALL)
    with pytest.raises(ValueError, match="was begun with options {}, now it is {'prompt': 'x'}"):
        packhorse.ray.embed(
            tmp_path / "a.parquet", model, output=tmp_path / "out", prompt="x", **SMALL
        )


def test_a_machine_is_lost(model: Path, folder: Path, cluster: Cluster) -> None:
    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)

    def progress(done: int, total: int) -> None:
        if done == 10:
            cluster.remove_node(node, allow_graceful=False)

    packhorse.ray.embed(
        folder / "in", model, output=folder / "out", workers=3, progress=progress, **SMALL
    )
    check(folder / "out", model, make_texts(12_000))
