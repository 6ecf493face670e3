"""Images on the command line: embed-images and classify-images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli, failed
from packhorse.image import ImageModel
from packhorse.image.files import find_images
from picture_models import picture_model, write_pictures

for needed in ("typer", "rich", "tokenizers", "PIL"):
    pytest.importorskip(needed)


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.image.reading.CHUNK", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return picture_model("clip", tmp_path / "clip")


@pytest.fixture
def shots(tmp_path: Path) -> list[Path]:
    return write_pictures(tmp_path / "shots", 7)


def test_find_images(tmp_path: Path, shots: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    inner = write_pictures(tmp_path / "shots" / "b" / "c", 1)
    write_pictures(tmp_path / "shots" / ".hidden", 1)
    (tmp_path / "shots" / "notes.txt").write_text("no image")
    (tmp_path / "shots" / "._00.png").write_bytes(b"of another system")
    everything = [str(path) for path in (*shots, *inner)]
    assert find_images([tmp_path / "shots"]) == everything
    assert find_images([f"{tmp_path}/shots/**/*.png"]) == sorted(
        path for path in everything if path.endswith(".png")
    )
    assert find_images([shots[2], shots[0], shots[2]]) == [str(shots[i]) for i in (2, 0, 2)]
    odd = tmp_path / "a[1].png"  # a name that looks like a pattern
    odd.write_bytes(shots[0].read_bytes())
    assert find_images([odd]) == [str(odd)]
    assert find_images([]) == []
    for path in (tmp_path / "shots" / "*.gif", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=r"no images, expected files that end in \.jpg"):
            find_images([path])
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        find_images([tmp_path / "gone.png"])


def test_embed(cli: Cli, folder: Path, shots: list[Path], tmp_path: Path) -> None:
    expected = ImageModel.load(folder).embed([str(path) for path in shots])
    assert len(np.unique(expected.round(5), axis=0)) == 7
    shown = cli("embed-images", folder, tmp_path / "shots")
    assert (shown.status, shown.err) == (0, "")
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["index"] for row in rows] == list(range(7))
    assert [row["path"] for row in rows] == [str(path) for path in shots]
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], "f4"), expected)
    out, names = tmp_path / "v.npy", tmp_path / "names.txt"
    shown = cli("embed-images", folder, *shots, "-o", out, "--names", names)
    assert shown == (0, "", f"packhorse: 7 x 24 float32 in {out}\n")
    np.testing.assert_array_equal(np.load(out), expected)
    assert names.read_text().splitlines() == [str(path) for path in shots]
    listed = "\n".join(str(path) for path in shots[::-1]).encode()
    cli("embed-images", folder, "-", "-o", out, "--truncate-dim", 5, stdin=listed)
    np.testing.assert_array_equal(np.load(out), expected[::-1, :5])
    cli("embed-images", folder, *shots, "-o", out, "--output-dtype", "ubinary")
    np.testing.assert_array_equal(np.load(out), np.packbits(expected > 0, axis=1))


def test_broken_images(cli: Cli, folder: Path, shots: list[Path], tmp_path: Path) -> None:
    expected = ImageModel.load(folder).embed([str(path) for path in shots])
    shots[4].write_bytes(shots[4].read_bytes()[:-300])
    shots[6].write_text("no image")
    shown = cli("embed-images", folder, *shots)
    assert shown.status == 1
    rows = [json.loads(line)["index"] for line in shown.out.splitlines()]
    assert rows == [0, 1, 2, 3]  # those before the first that is broken
    assert shown.err.count("\n") == 1
    assert "04.JPG" in shown.err
    assert "is broken" in shown.err
    assert "--errors skip leaves it out" in shown.err

    shown = cli("embed-images", folder, *shots, "--errors", "skip")
    assert shown.status == 0
    assert "images left out: 2, the first: the file" in shown.err
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 5]
    found = np.array([row["embedding"] for row in rows], "f4")
    np.testing.assert_array_equal(found, expected[[0, 1, 2, 3, 5]])
    out, names = tmp_path / "v.npy", tmp_path / "names.txt"
    asked = ("embed-images", folder, *shots, "--errors", "skip", "-o", out)
    assert failed(cli(*asked), "cannot say which images were left out", "--names")
    assert cli(*asked, "--names", names).status == 0
    assert len(np.load(out)) == len(names.read_text().splitlines()) == 5

    gone = f"{shots[0]}\n{tmp_path / 'gone.png'}\n{shots[1]}\n".encode()
    assert "gone.png: No such file" in cli("embed-images", folder, "-", stdin=gone).err
    shown = cli("embed-images", folder, "-", "--errors", "skip", stdin=gone)
    assert [json.loads(line)["index"] for line in shown.out.splitlines()] == [0, 2]
    assert cli("embed-images", folder, "-", stdin=b"") == (0, "", "")
    only = cli("embed-images", folder, shots[6], "--errors", "skip")
    assert (only.status, only.out) == (0, "")


def test_classify(cli: Cli, shots: list[Path], tmp_path: Path) -> None:
    folder = picture_model("deit", tmp_path / "deit")
    paths = [str(path) for path in shots]
    model = ImageModel.load(folder)
    shown = cli("classify-images", folder, *shots)
    assert (shown.status, shown.err) == (0, "")
    rows = [json.loads(line) for line in shown.out.splitlines()]
    best = model.classify(paths, top_k=1)
    pairs = list(zip(paths, best, strict=True))
    assert rows == [{"index": i, "path": path, **one[0]} for i, (path, one) in enumerate(pairs)]
    shown = cli("classify-images", folder, *shots, "--top-k", 2)
    rows = [json.loads(line)["labels"] for line in shown.out.splitlines()]
    assert rows == model.classify(paths, top_k=2)
    assert failed(cli("classify-images", folder, *shots, "--label", "cat"), "no model of texts")
    assert failed(cli("classify-images", folder, *shots, "--template", "{}"), "without --label")


def test_zero_shot(cli: Cli, folder: Path, shots: list[Path]) -> None:
    labels, template = ["cat", "the dog", "mat"], "the {}"
    asked = [part for label in labels for part in ("--label", label)]
    shown = cli("classify-images", folder, *shots, *asked, "--template", template, "--top-k", 3)
    rows = [json.loads(line)["labels"] for line in shown.out.splitlines()]
    model = ImageModel.load(folder)
    expected = model.zero_shot([str(path) for path in shots], labels, template=template)
    for row, other in zip(rows, expected, strict=True):
        assert [one["label"] for one in row] == [one["label"] for one in other]
        assert sum(one["score"] for one in row) == pytest.approx(1)
    wrong = cli("classify-images", folder, *shots, *asked, "--template", "the")
    assert failed(wrong, "expected {} where the label goes")
    assert failed(cli("classify-images", folder, *shots), "no classifier of images: use zero_shot")


def test_what_is_refused(cli: Cli, folder: Path, shots: list[Path], tmp_path: Path) -> None:
    refused = [
        ((tmp_path / "gone",), "gone: No such file"),
        ((*shots, "--errors", "replace"), "'replace' is not one of strict, skip"),
        ((*shots, "-o", "v.txt"), "the name says no format"),
        ((*shots, "--truncate-dim", 25), "truncate_dim is 25, but embeddings have 24 dimensions"),
        ((*shots, "--output-dtype", "int8"), "needs --calibration"),
    ]
    for arguments, message in refused:
        assert failed(cli("embed-images", folder, *arguments), message)
    (folder / "preprocessor_config.json").unlink()
    assert failed(cli("embed-images", folder, *shots), "no preprocessor_config.json")
