"""Fragments of files, folders whose files appear whole, and plans: no cluster is needed."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pyarrow as pa
import pytest
from packhorse.ray import Embedder
from packhorse.ray.fragments import SUFFIXES, Fragment, cut, read
from packhorse.ray.places import Folder, Found, find_files
from packhorse.ray.plan import Plan
from packhorse.ray.worker import EmbeddingJob, FragmentWorker
from ray_support import make_texts, read_output, vectors, write_parquet


def fragments_of(path: Path, size: int, column: str = "text") -> list[Fragment]:
    found = Found(str(path), path.stat().st_size)
    cuts = cut(found, size, column)
    return [Fragment(i, str(path), first, last) for i, (first, last) in enumerate(cuts)]


def rows_of(path: Path, size: int, keep: list[str] | None = None) -> pa.Table:
    parts = [part for one in fragments_of(path, size) for part in read(one, "text", keep)]
    return pa.concat_tables(parts, promote_options="default")


@pytest.mark.parametrize("size", [1, 7, 100, 5000, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_are_in_one_fragment_each(tmp_path: Path, size: int, end: str, last: bool) -> None:
    lines = [text.encode() for text in ["", "Öl ", *make_texts(300), "long " * 500, "", "end"]]
    path = tmp_path / "lines.txt"
    path.write_bytes(end.encode().join(lines) + (end.encode() if last else b""))
    assert rows_of(path, size)["text"].to_pylist() == [line.decode() for line in lines]
    if size == 100:
        assert len(fragments_of(path, size)) > 50


@pytest.mark.parametrize("size", [1, 200, 1 << 20])
def test_json_lines(tmp_path: Path, size: int) -> None:
    rows = [{"id": i, "text": text} for i, text in enumerate(make_texts(50))]
    rows[7]["text"] = None
    rows[9]["text"] = "2026-11-22"  # a reader may take it for a date
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    found = rows_of(path, size)
    assert found.sort_by("id").to_pylist() == [{"text": r["text"], "id": r["id"]} for r in rows]
    assert rows_of(path, size, keep=[]).column_names == ["text"]


def test_compressed_lines_are_one_fragment(tmp_path: Path) -> None:
    texts = make_texts(100)
    path = tmp_path / "lines.txt.gz"
    path.write_bytes(gzip.compress("\n".join(texts).encode()))
    assert len(fragments_of(path, 10)) == 1
    assert rows_of(path, 10)["text"].to_pylist() == texts


def test_row_groups_are_gathered(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = make_texts(100)
    write_parquet(path, texts, rows=10)
    assert len(fragments_of(path, 1)) == 10
    assert len(fragments_of(path, 1 << 20)) == 1
    assert 1 < len(fragments_of(path, 2000)) < 10
    for size in (1, 2000, 1 << 20):
        table = rows_of(path, size)
        assert table["text"].to_pylist() == texts
        assert table["id"].to_pylist() == list(range(100))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"body": "x"}\n', "a.jsonl .bytes 0 to 14.: no line has a field 'text'"),
        ("a.jsonl", '{"text": 3}\n', "a.jsonl .bytes 0 to 12."),
        ("a.jsonl", '{"text": "x"\n', "a.jsonl .bytes 0 to 13."),
        ("a.txt", b"\xff\xfe\n", "a.txt .bytes 0 to 3.: .*utf-8"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        rows_of(path, 100)


def test_columns_of_parquet_are_checked_when_it_is_planned(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, ["x"], rows=1)
    with pytest.raises(ValueError, match="no column 'body', found: id, text"):
        fragments_of(path, 1, "body")
    with pytest.raises(ValueError, match="column 'id' has type int64, expected strings"):
        fragments_of(path, 1, "id")


def test_files_are_found(tmp_path: Path) -> None:
    for name in ("b/c.txt", "a.jsonl", "_hidden/d.txt", "b/.e.txt", "image.png", "z.ndjson.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = find_files([str(tmp_path)], SUFFIXES)
    names = [str(Path(file.place).relative_to(tmp_path)) for file in found]
    assert names == ["a.jsonl", "b/c.txt", "z.ndjson.gz"]
    assert find_files([f"{tmp_path}/?/*.txt", f"{tmp_path}/b"], SUFFIXES) == [found[1]]
    assert [file.size for file in find_files([f"file://{tmp_path}/a.jsonl"], SUFFIXES)] == [1]
    with pytest.raises(ValueError, match="image.png: the name ends in none of .parquet"):
        find_files([f"{tmp_path}/image.png"], SUFFIXES)
    for nothing in ("nowhere", "*.csv"):
        with pytest.raises(FileNotFoundError, match="no files that end in"):
            find_files([f"{tmp_path}/{nothing}"], SUFFIXES)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "out"))
    with folder.writing("a") as stream:
        stream.write(b"1")
        assert folder.names() == set()
    assert folder.read("a") == b"1"

    def stop() -> None:
        with folder.writing("a") as stream:
            stream.write(b"2")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert folder.read("a") == b"1"
    assert list((tmp_path / "out/_temporary").iterdir()) == []


KILLED = """
import os, signal, sys
from packhorse.ray.places import Folder
with Folder(sys.argv[1]).writing("part") as stream:
    stream.write(b"half of it")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert process.returncode == -signal.SIGKILL
    folder = Folder(str(tmp_path))
    assert folder.names() == set()
    assert len(list((tmp_path / "_temporary").iterdir())) == 1
    folder.remove_partial()
    assert list(tmp_path.iterdir()) == []


def test_object_stores_get_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way without renaming, on a local disk that says it is an object store."""
    from packhorse.ray import places

    monkeypatch.setattr(places, "_OBJECT_STORES", ("local",))
    folder = Folder(str(tmp_path))
    with folder.writing("a") as stream:
        stream.write(b"1")
        assert folder.names() == set()
    assert folder.read("a") == b"1"
    with pytest.raises(KeyboardInterrupt), folder.writing("b") as stream:
        raise KeyboardInterrupt
    assert folder.names() == {"a"}


def test_a_plan_keeps_its_fragments(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(make_texts(100)))
    folder = Folder(str(tmp_path / "out"))
    assert Plan.read(folder) is None
    plan = Plan({"model": "m"}, [])
    assert plan.add([Found(str(path), path.stat().st_size)], 500, "text")
    plan.write(folder)
    again = Plan.read(folder)
    assert again is not None
    assert list(again.fragments()) == list(plan.fragments()) == fragments_of(path, 500)
    assert not again.add(
        [Found(str(path), path.stat().st_size)], 1, "text"
    )  # another size: as begun
    other = tmp_path / "0.txt"
    other.write_text("x")
    assert again.add([Found(str(other), 1), Found(str(path), path.stat().st_size)], 1, "text")
    *first, last = again.fragments()
    assert first == list(plan.fragments())
    assert last == Fragment(len(first), str(other), 0, 1)
    with pytest.raises(ValueError, match="a.txt has changed since it was planned: 3 bytes"):
        again.add([Found(str(path), 3)], 1, "text")
    with pytest.raises(ValueError, match="was begun with model 'm', now it is 'n'"):
        again.check_settings({"model": "n"}, folder)
    (tmp_path / "out/_plan.json").write_text("[]")
    with pytest.raises(ValueError, match="_plan.json: not a plan"):
        Plan.read(folder)


def job(model: Path, output: Path, keep: list[str] | None = None) -> EmbeddingJob:
    embedder = {"load": {"threads": 1}, "column": "text", "embedding_column": "embedding"}
    return EmbeddingJob(str(model), embedder, "text", "embedding", keep, Folder(str(output)))


def call(worker: FragmentWorker, fragments: list[Fragment]) -> list[dict[str, Any]]:
    batch = {name: np.array(column) for name, column in zip(Fragment._fields, zip(*fragments))}  # noqa: B905
    found = worker(batch)
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def test_a_worker_writes_what_embed_gives(model: Path, tmp_path: Path) -> None:
    texts: list[str | None] = [*make_texts(60), None, "", None]
    write_parquet(tmp_path / "a.parquet", texts, rows=10)
    worker = FragmentWorker(job(model, tmp_path / "out"))
    fragments = fragments_of(tmp_path / "a.parquet", 1)
    assert [row["rows"] for row in call(worker, fragments)] == [10, 10, 10, 10, 10, 10, 3]
    assert [row["rows"] for row in call(worker, fragments)] == [0] * 7  # done, and not done again
    found = read_output(tmp_path / "out")
    assert found["id"].to_pylist() == list(range(len(texts)))
    assert found["text"].to_pylist() == texts
    assert [row is None for row in found["embedding"].to_pylist()] == [t is None for t in texts]
    with packhorse.TextModel.load(model, threads=1) as plain:
        expected = plain.embed([text for text in texts if text is not None])
    given = found.filter(pa.compute.is_valid(found["text"]))
    assert vectors(given).tobytes() == expected.tobytes()


def test_columns_that_are_kept(model: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["the cat"], rows=1)
    fragments = fragments_of(tmp_path / "a.parquet", 1)
    for keep, names in (([], []), (["id"], ["id"]), (["text", "id"], ["text", "id"])):
        output = tmp_path / f"out-{len(names)}"
        assert [row["error"] for row in call(FragmentWorker(job(model, output, keep)), fragments)]
        assert read_output(output).column_names == [*names, "embedding"]


def test_an_error_is_a_result(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat\n")
    (tmp_path / "b.txt").write_bytes(b"\xff\n")
    worker = FragmentWorker(job(model, tmp_path / "out"))
    fragments = [Fragment(i, str(tmp_path / f"{name}.txt"), 0, 2) for i, name in enumerate("ba")]
    bad, good = call(worker, fragments)
    assert "b.txt" in bad["error"]
    assert "utf-8" in bad["error"]
    assert good["error"] == ""
    assert Folder(str(tmp_path / "out")).names() == {"part-00000001.parquet"}


def test_what_kills_its_workers_is_given_up(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat\n")
    folder = Folder(str(tmp_path))
    worker = FragmentWorker(job(model, tmp_path))
    fragment = Fragment(0, str(tmp_path / "a.txt"), 0, 8)
    for _ in range(5):
        killed = KILLED.replace('"part"', repr(fragment.output))
        subprocess.run([sys.executable, "-c", killed, tmp_path], check=False)
    assert "5 workers died over it" in call(worker, [fragment])[0]["error"]
    folder.remove_partial()  # a later run begins with this
    assert call(worker, [fragment]) == [{"fragment": 0, "rows": 1, "error": ""}]


def test_batches_of_an_embedder(model: Path) -> None:
    embedder = Embedder(model, column="body", embedding_column="v", load={"threads": 1})
    texts = make_texts(5)
    expected = embedder.model.embed(texts)
    found = embedder({"body": np.array(texts, object), "n": np.arange(5)})
    assert list(found) == ["body", "n", "v"]
    assert found["v"].tobytes() == expected.tobytes()
    table = embedder(pa.table({"body": [*texts, None]}))
    assert table.schema.field("v").type == pa.list_(pa.float32(), expected.shape[1])
    assert table["v"].to_pylist() == [*expected.tolist(), None]
    assert embedder(pa.table({"body": pa.array([], pa.string())})).num_rows == 0
    with pytest.raises(ValueError, match="no column 'body', found: text"):
        embedder(pa.table({"text": texts}))
    with pytest.raises(ValueError, match="a batch is a list, expected a pyarrow Table"):
        embedder([])
    with pytest.raises(ValueError, match='dtype="int8" needs ranges'):
        Embedder(model, dtype="int8")
    half = Embedder(model, dtype="float16", truncate_dim=8, load={"threads": 1})
    assert half(pa.table({"text": texts})).schema.field("embedding").type == pa.list_(
        pa.float16(), 8
    )
