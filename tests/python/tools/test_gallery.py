"""The scripts of examples/ that people start from, each as a command, with tiny models."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse import TextModel
from packhorse.image import ImageModel
from picture_models import picture_model
from tiny_tokenizer import with_tokenizer

pytest.importorskip("tokenizers")
EXAMPLES = Path(__file__).parents[3] / "examples"
LINES = ["the cat sat on the mat", "a dog ran to the house", "the bird flew"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def model(tmp_path: Path, golden: str) -> Path:
    return with_tokenizer(GOLDEN / golden, tmp_path / golden)


def test_semantic_search(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    texts = tmp_path / "texts"
    (texts / "more").mkdir(parents=True)
    (texts / "one.txt").write_text(f"{LINES[0]}\n\n{LINES[1]}\n")
    (texts / "more" / "two.md").write_text(LINES[2])
    folder = model(tmp_path, "bert-gelu")
    for _ in range(2):  # the second time by the index
        said = script("semantic_search", texts, LINES[1], "--model", folder, "--top", 2)
        first, text = said.splitlines()[:2]
        assert first.split("  ") == ["1.000", "one.txt, paragraph 2"]
        assert text.strip() == LINES[1]
        assert len(said.splitlines()) == 4
    (texts / "one.txt").write_text(LINES[0])
    said = script("semantic_search", texts, LINES[1], "--model", folder)
    assert LINES[1] not in said
    assert len(said.splitlines()) == 4


def test_rerank(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n\n")
    folder = model(tmp_path, "bert-reranker")
    said = script("rerank", "a cat", tmp_path / "lines.txt", "--model", folder)
    found = [(float(line[:8]), line[10:]) for line in said.splitlines()]
    scores = TextModel.load(folder).score("a cat", LINES)
    expected = sorted(zip(scores.tolist(), LINES, strict=True), reverse=True)
    assert [text for _, text in found] == [text for _, text in expected]
    for (score, _), (other, _) in zip(found, expected, strict=True):
        assert score == pytest.approx(other, abs=1e-4)


def test_tag_entities(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    folder = model(tmp_path, "bert-tokens")
    tagged = TextModel.load(folder).classify_tokens(LINES, aggregation_strategy="simple")
    entities = [(one["entity_group"], one["word"]) for line in tagged for one in line]
    said = script("tag_entities", tmp_path / "lines.txt", "--model", folder)
    rows = [line.split(None, 2) for line in said.splitlines()]
    assert sum(int(row[0]) for row in rows) == len(entities) > 0
    assert {(kind, word) for _, kind, word in rows} == set(entities)
    lines = script("tag_entities", tmp_path / "lines.txt", "--model", folder, "--json").splitlines()
    assert sum(len(json.loads(line)["entities"]) for line in lines) == len(entities)


def test_classify_csv(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(LINES)])
    folder = model(tmp_path, "bert-sequence")
    arguments = (tmp_path / "in.csv", tmp_path / "out.csv", "--model", folder)
    assert script("classify_csv", *arguments) == f"3 rows in {tmp_path / 'out.csv'}\n"
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == LINES
    best = TextModel.load(folder).classify(LINES)
    assert [row["label"] for row in rows] == [one["label"] for one in best]
    assert [float(row["score"]) for row in rows] == pytest.approx(
        [one["score"] for one in best], abs=1e-4
    )
    with pytest.raises(SystemExit, match="no column 'words'; it has id, text"):
        script("classify_csv", *arguments, "--column", "words")


def test_embed_parquet(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    texts = [*LINES, None, LINES[0]]
    table = pa.table({"id": list(range(5)), "text": texts})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    folder = model(tmp_path, "bert-gelu")
    said = script(
        "embed_parquet", tmp_path / "in.parquet", tmp_path / "out.parquet", "--model", folder
    )
    assert said == f"5 rows in {tmp_path / 'out.parquet'}\n"
    found = pq.read_table(tmp_path / "out.parquet")
    assert found["text"].to_pylist() == texts
    rows = found["embedding"].to_pylist()
    assert rows[3] is None
    vectors = TextModel.load(folder).embed(LINES)
    np.testing.assert_array_equal(np.array(rows[:3], np.float32), vectors)
    assert rows[4] == rows[0]


def test_search_pictures(script, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("PIL")
    folder, pictures = picture_model("clip", tmp_path / "clip"), tmp_path / "pictures"
    asked = ("search_pictures", pictures, "the cat", "--model", folder, "--top", 12)
    said = script(*asked, "--samples")
    paths = sorted(pictures.glob("*.png"))
    assert len(paths) == 12
    with ImageModel.load(folder) as model:
        cosines = model.embed(paths) @ model.texts.embed("the cat")
    order = np.argsort(-cosines)
    expected = [f"{cosines[i]:.3f}  {paths[i].name}" for i in order]
    assert said.splitlines() == expected
    paths[0].unlink()
    gone = [line for line in expected if not line.endswith(paths[0].name)]
    assert script(*asked).splitlines() == gone  # by the index
