"""`packhorse embed --ray`."""

from __future__ import annotations

import json
from pathlib import Path

import packhorse
import pytest
from command_line import Cli, entry_point, failed
from ray_support import Cluster, make_texts, read_output, vectors

pytest.importorskip("typer")
pytest.importorskip("rich")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return entry_point(monkeypatch, capsys)


def test_files_of_several_kinds(cluster: Cluster, cli: Cli, model: Path, tmp_path: Path) -> None:
    texts = make_texts(20)
    (tmp_path / "in").mkdir()
    rows = [json.dumps({"id": i, "body": text}) for i, text in enumerate(texts)]
    (tmp_path / "in/a.jsonl").write_text("\n".join(rows[:9]) + "\n")
    (tmp_path / "b.ndjson").write_text("\n".join(rows[9:]) + "\n")
    out = tmp_path / "out"
    arguments = ["embed", model, tmp_path / "in", tmp_path / "b.ndjson", "--ray", "-o", out]
    arguments += ["--column", "body", "--keep", "id", "--truncate-dim", "8", "--workers", "1"]
    shown = cli(*arguments)
    assert shown == (0, "", f"packhorse: 20 rows to {out}, 2 of 2 parts\n")
    table = read_output(out).sort_by("id")
    assert table.column_names == ["id", "embedding"]
    with packhorse.TextModel.load(model, threads=1) as plain:
        assert vectors(table).tobytes() == plain.embed(texts, truncate_dim=8).tobytes()
    again = f"packhorse: 0 rows to {out}, 0 of 2 parts; 2 were there already\n"
    assert cli(*arguments) == (0, "", again)


def test_refusals(cluster: Cluster, cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("the cat\n")
    for options, message in (
        (["--workers", "2"], "--workers has no effect without --ray"),
        (["--ray"], "--ray needs a folder to write to"),
        (["--ray", "-o", "out", "--format", "npy"], "--format has no effect with --ray"),
        (["--ray", "-o", "out", "--errors", "skip"], "--errors has no effect with --ray"),
        (["--ray", "-o", "out", "--gpus-per-worker", "1"], "--gpus-per-worker 1 with --device cpu"),
    ):
        assert failed(cli("embed", model, file, *options), message)
    assert failed(cli("embed", model, "-", "--ray", "-o", "out"), "--ray reads files, not stdin")
    two = cli("embed", model, file, file)
    assert two.status == 2
    assert "2 files, expected one (several need --ray)" in two.err
