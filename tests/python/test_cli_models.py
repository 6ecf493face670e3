"""Options that say which model there is, in all commands: names of the hub, pooling, dtypes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packhorse
import pytest
from checkpoints import BERT
from command_line import Cli, failed
from packhorse_weights import inspect_checkpoint
from tiny_tokenizer import with_tokenizer

for needed in ("typer", "rich", "tokenizers"):
    pytest.importorskip(needed)

LINES = ["the cat", "a mat", "who was it?"]
NAME = "org/tiny"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES))
    return path


def test_pooling(cli: Cli, text: Path, tmp_path: Path) -> None:
    folder, out = with_tokenizer(BERT, tmp_path / "m"), tmp_path / "v.npy"
    expected = packhorse.TextModel.load(folder, pooling=["cls", "max"], normalize=False)
    for asked in (("--pooling", "cls,max"), ("--pooling", "cls", "--pooling", "max")):
        options = (*asked, "--no-normalize")
        assert cli("embed", folder, text, "-o", out, *options).status == 0
        np.testing.assert_array_equal(np.load(out), expected.embed(LINES))
    assert cli("embed", folder, text, "-o", out, "--pooling", "max", "--normalize").status == 0
    expected = packhorse.TextModel.load(folder, pooling="max", normalize=True)
    np.testing.assert_array_equal(np.load(out), expected.embed(LINES))
    assert cli("convert", folder, tmp_path / "c", *options).status == 0
    embedding = inspect_checkpoint(tmp_path / "c").spec["embedding"]
    assert embedding == {"pooling": ["cls", "max"], "normalize": False}
    for command in (("evaluate", folder, "--file", text), ("bench", folder, "--seconds", "0.1")):
        assert cli(*command, *options).status == 0
        assert failed(cli(*command, "--pooling", "median"), "'median' is not one of cls, mean")


def test_inspect_says_why_it_pools_so(cli: Cli, tmp_path: Path) -> None:
    folder = with_tokenizer(BERT, tmp_path / "m")
    checkpoint = inspect_checkpoint(folder)
    found = json.loads(cli("inspect", folder, "--json").out)["embedding"]
    assert found["pooling"] == [checkpoint.spec["embedding"]["pooling"]]
    assert found["pooling_reason"] == checkpoint.pooling_reason
    assert checkpoint.pooling_reason in cli("inspect", folder).out
    shown = cli("inspect", folder, "--pooling", "last,max", "--normalize").out
    assert "64 columns: last + max, normalised to length 1" in shown
    assert "asked for" in shown


def test_truncate_dim_of_the_files(cli: Cli, tmp_path: Path) -> None:
    folder = with_tokenizer(BERT, tmp_path / "m")
    (folder / "config_sentence_transformers.json").write_text('{"truncate_dim": 8}')
    assert json.loads(cli("inspect", folder, "--json").out)["embedding"]["truncate_dim"] == 8
    assert "embed gives the first 8" in cli("inspect", folder).out
