"""Lines that are not UTF-8, numbers of lines in results and messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, GOLDEN
from command_line import Cli, failed
from tiny_tokenizer import with_kind, with_tokenizer

for needed in ("typer", "rich", "tokenizers"):
    pytest.importorskip(needed)

# The second line and the last are not UTF-8; chunks of eight bytes split them.
BYTES = b"the cat\nd\xffgs\n\na mat\n\xc3\n"
REPLACED = ["the cat", "d\ufffdgs", "", "a mat", "\ufffd"]
KEPT = {0: "the cat", 2: "", 3: "a mat"}


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.cli.lines._CHUNK_BYTES", 8)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_bytes(BYTES)
    return path


def test_strict(cli: Cli, text: Path, tmp_path: Path) -> None:
    """Lines before the wrong one are printed, and the message says how to go on."""
    folder = with_tokenizer(BERT, tmp_path / "m")
    shown = cli("embed", folder, text)
    assert shown.status == 1
    assert [json.loads(line)["index"] for line in shown.out.splitlines()] == [0]
    assert "lines.txt, line 2: not UTF-8" in shown.err
    assert "--errors replace or --errors skip" in shown.err


def test_replace(cli: Cli, text: Path, tmp_path: Path) -> None:
    folder, out = with_tokenizer(BERT, tmp_path / "m"), tmp_path / "v.npy"
    shown = cli("embed", folder, text, "-o", out, "--errors", "replace")
    note = "packhorse: lines with bytes replaced that are not UTF-8: 2, the first of them line 2\n"
    assert shown == (0, "", f"{note}packhorse: 5 x 32 float32 in {out}\n")
    np.testing.assert_array_equal(np.load(out), packhorse.TextModel.load(folder).embed(REPLACED))


def test_skip(cli: Cli, text: Path, tmp_path: Path) -> None:
    """The other lines keep their numbers."""
    folder = with_tokenizer(BERT, tmp_path / "m")
    shown = cli("embed", folder, text, "--errors", "skip")
    note = "packhorse: lines left out that are not UTF-8: 2, the first of them line 2\n"
    assert (shown.status, shown.err) == (0, note)
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["index"] for row in rows] == list(KEPT)
    expected = packhorse.TextModel.load(folder).embed(KEPT.values())
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], "f4"), expected)
    out = tmp_path / "v.npy"
    refused = cli("embed", folder, text, "-o", out, "--errors", "skip")
    assert failed(refused, "a .npy file cannot say which lines")
    assert not out.exists()


@pytest.mark.parametrize("command", ["classify", "evaluate"])
def test_every_command_that_reads_lines(cli: Cli, text: Path, tmp_path: Path, command: str) -> None:
    folder = with_tokenizer(GOLDEN / "bert-sequence", tmp_path / "m")
    asked = (command, folder, text)
    assert "line 2: not UTF-8" in cli(*asked).err
    shown = cli(*asked, "--errors", "skip")
    assert shown.status == 0
    assert "left out that are not UTF-8: 2" in shown.err
    if command == "classify":
        assert [json.loads(line)["index"] for line in shown.out.splitlines()] == list(KEPT)
    assert failed(cli(*asked, "--errors", "ignore"), "'ignore' is not one of strict, replace, skip")


def test_byte_order_mark(text: Path) -> None:
    """The mark is dropped at a file's start alone: elsewhere it is a character as others."""
    from packhorse.cli.lines import open_lines

    text.write_text("\ufeffthe cat\n\ufeffdogs\n", encoding="utf-8")
    with open_lines(text, "reading") as reader:
        assert [text for lines in reader for text in lines.texts] == ["the cat", "\ufeffdogs"]


def test_messages_name_the_line(cli: Cli, text: Path, tmp_path: Path) -> None:
    """The line's number counts in the file, not in the chunk that was being read."""
    folder = with_kind(GOLDEN / "bert-predictions", tmp_path / "m", "words")
    text.write_text("the [MASK]\na [MASK]\na cat\n")
    shown = cli("fill-mask", folder, text)
    assert shown.status == 1
    assert "packhorse: line 3 has 0 [MASK]" in shown.err
    assert len(shown.out.splitlines()) == 2
