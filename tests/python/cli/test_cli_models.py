"""Options that say which model there is, in all commands: names of the hub, pooling, dtypes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, GOLDEN
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


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders of the two revisions of a model in a cache of Hugging Face."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    entry = tmp_path / "home" / "hub" / "models--org--tiny"
    folders = {}
    for revision, model, commit in (
        ("main", "bert-gelu", "a" * 40),
        ("v1", "bert-reranker", "b" * 40),
    ):
        (entry / "refs").mkdir(parents=True, exist_ok=True)
        (entry / "refs" / revision).write_text(commit)
        (entry / "snapshots").mkdir(exist_ok=True)
        folders[revision] = with_tokenizer(GOLDEN / model, entry / "snapshots" / commit)
    return folders


def test_models_by_name(cli: Cli, text: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    for revision, folder in folders.items():
        assert cli("embed", NAME, text, "-o", out, "--revision", revision).status == 0
        expected = packhorse.TextModel.load(folder).embed(LINES)
        np.testing.assert_array_equal(np.load(out), expected)
        shown = json.loads(cli("inspect", NAME, "--revision", revision, "--json").out)
        assert (shown["model"], shown["folder"]) == (NAME, str(folder))
        assert shown["text"]["kind"] == "WordPiece"
        converted = tmp_path / revision
        assert cli("convert", NAME, converted, "--revision", revision).status == 0
        assert cli("embed", converted, text, "-o", out).status == 0
        np.testing.assert_array_equal(np.load(out), expected)
    shown = cli("score", NAME, "who", text, "--revision", "v1")
    assert shown.out == cli("score", folders["v1"], "who", text).out
    assert shown.out.count("score") == len(LINES)
    assert failed(cli("score", NAME, "who", text), "score: this model")
    for command in (("evaluate", NAME, text), ("bench", NAME, "--seconds", "0.1")):
        assert NAME in cli(*command).out
        assert cli(*command, "--revision", "v1").status == 0
        assert failed(cli(*command, "--revision", "v2"), "'v2'")
    assert failed(cli("inspect", "org/other"), "org/other", "hf download org/other")
    assert failed(cli("inspect", folders["main"], "--revision", "v1"), "revision 'v1'")


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
    for command in (("evaluate", folder, text), ("bench", folder, "--seconds", "0.1")):
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


def test_a_quantised_folder_knows_its_dtype(cli: Cli, text: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "q", tmp_path / "v.npy"
    assert cli("convert", with_tokenizer(BERT, tmp_path / "m"), folder, "--quantize", "int8")
    session = json.loads(cli("inspect", folder, "--json").out)["session"]
    assert session["dtype"] == "int8"
    assert session["bytes"]["total"] == packhorse.plan_memory(folder, dtype="int8").total_bytes
    assert cli("embed", folder, text, "-o", out).status == 0
    expected = packhorse.TextModel.load(folder, dtype="int8").embed(LINES)
    np.testing.assert_array_equal(np.load(out), expected)
    assert "int8 on cpu" in cli("bench", folder, "--seconds", "0.1").out
    assert failed(cli("evaluate", folder, text), "holds its weights in int8 alone")
    shown = cli("evaluate", folder, text, "--reference", tmp_path / "m")
    assert "int8 on cpu beside float32" in shown.out


def test_dtypes_of_a_gpu(cli: Cli, tmp_path: Path) -> None:
    """Shows the default dtype of a session on a GPU, on a machine that has none."""
    for dtype, default in (("float32", "float16"), ("bfloat16", "bfloat16")):
        assert cli("convert", BERT, tmp_path / dtype, "--dtype", dtype).status == 0
        shown = cli("inspect", tmp_path / dtype, "--device", "cuda", "--json")
        assert json.loads(shown.out)["session"]["dtype"] == default
