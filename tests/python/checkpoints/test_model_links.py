"""A model's folder reads regular files of its own: no links out of it, no pipes, no devices."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from adapted_model import adapted_texts
from checkpoints import GOLDEN
from packhorse_weights import CheckpointError, convert, read_adapter, resolve_model
from packhorse_weights.files import MAX_JSON_BYTES, has_file, read_bytes
from packhorse_weights.generation_files import read_generation
from packhorse_weights.text import read_text_config

OUTSIDE = "outside of the model's folder"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_text("{}")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "bert-dense", tmp_path / "model"))


def replaced(path: Path, by: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(by)


@pytest.mark.parametrize("name", ["LICENSE", "vocab.txt", "tokenizer_config.json", "NOTICE"])
def test_convert_copies_nothing_from_elsewhere(name: str, model: Path, secret: Path) -> None:
    replaced(model / name, secret)
    with pytest.raises(CheckpointError, match=f"{name}: a link to {secret}, {OUTSIDE}"):
        convert(model, model.parent / "converted")
    assert not (model.parent / "converted").exists()


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "modules.json",
        "model.safetensors",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
    ],
)
def test_links_out_of_the_folder(name: str, model: Path, secret: Path) -> None:
    there = secret.parent / "file"
    if (model / name).exists():
        shutil.copyfile(model / name, there)
    else:
        there.write_text("{}")
    replaced(model / name, there)
    with pytest.raises(CheckpointError, match=f"{name}: a link to {there}, {OUTSIDE}"):
        resolve_model(model)


def test_folders_that_are_links(model: Path, secret: Path) -> None:
    (model / "1_Pooling").rename(secret.parent / "1_Pooling")
    (model / "1_Pooling").symlink_to(secret.parent / "1_Pooling")
    with pytest.raises(CheckpointError, match=f"1_Pooling: a link to .*{OUTSIDE}"):
        resolve_model(model)


def test_chat_templates(tmp_path: Path, secret: Path) -> None:
    model = Path(shutil.copytree(GOLDEN / "llama", tmp_path / "model"))
    (secret.parent / "x.jinja").write_text("secret")
    (model / "additional_chat_templates").symlink_to(secret.parent)
    with pytest.raises(CheckpointError, match=OUTSIDE):
        read_generation(model)


def test_shards_adapters_and_gguf_files(tmp_path: Path, secret: Path) -> None:
    sharded = Path(shutil.copytree(GOLDEN / "bert-sharded", tmp_path / "sharded"))
    shard = sorted(sharded.glob("model-*.safetensors"))[0]
    shard.rename(secret.parent / "shard")
    shard.symlink_to(secret.parent / "shard")
    with pytest.raises(CheckpointError, match=OUTSIDE):
        resolve_model(sharded)

    base, adapter = adapted_texts(tmp_path)
    spec = resolve_model(base).spec
    weights = adapter / "adapter_model.safetensors"
    weights.rename(secret.parent / "adapter")
    weights.symlink_to(secret.parent / "adapter")
    with pytest.raises(CheckpointError, match=OUTSIDE):
        read_adapter(adapter, spec)

    (tmp_path / "gguf").mkdir()
    link = tmp_path / "gguf" / "llama.gguf"
    link.symlink_to(GOLDEN / "gguf" / "llama.gguf")
    with pytest.raises(CheckpointError, match=OUTSIDE):
        resolve_model(link.parent)
    assert resolve_model(link).spec["family"] == "llama"  # the caller named the file


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "LICENSE"],
)
def test_pipes_and_devices(name: str, make: Callable[[Path], None], model: Path) -> None:
    """Pipes and devices are neither read, which would not end, nor waited for."""
    (model / name).unlink(missing_ok=True)
    make(model / name)
    calls = (lambda: convert(model, model.parent / "converted"), lambda: read_text_config(model))
    refused = 0
    for call in calls:
        try:
            call()
        except CheckpointError as error:
            refused += f"{name}: " in str(error)
    assert refused
    with pytest.raises(CheckpointError, match=f"{OUTSIDE}|a pipe, socket or device"):
        has_file(model / name)


def test_links_to_themselves(model: Path) -> None:
    for name in ("config.json", "1_Pooling"):
        shutil.rmtree(model / name) if (model / name).is_dir() else (model / name).unlink()
        (model / name).symlink_to(model / name)
        with pytest.raises(
            CheckpointError, match="config.json: the file is missing|no config.json"
        ):
            resolve_model(model)


def test_links_within_the_folder(model: Path) -> None:
    before = resolve_model(model)
    (model / "files").mkdir()
    for name in ("config.json", "1_Pooling/config.json"):
        (model / name).rename(model / "files" / "of-it.json")
        replaced(model / name, model / "files" / "of-it.json")
        assert resolve_model(model).spec == before.spec
        (model / "files" / "of-it.json").rename(model / name)
    whole = model.parent / "link"
    whole.symlink_to(model)
    assert resolve_model(whole).spec == before.spec


def test_files_of_a_cache(model: Path, secret: Path, tmp_path: Path) -> None:
    """Snapshots in the cache of Hugging Face are links to the blobs of their repository."""
    repository = tmp_path / "models--org--model"
    snapshot = repository / "snapshots" / "0123abcd"
    blobs = repository / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(one for one in model.rglob("*") if one.is_file())):
        shutil.copyfile(file, blobs / str(number))
        link = snapshot / file.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    expected = resolve_model(model).spec
    assert resolve_model(snapshot).spec == expected
    whole = tmp_path / "link"
    whole.symlink_to(snapshot)
    assert resolve_model(whole).spec == expected
    replaced(snapshot / "config.json", secret)
    with pytest.raises(CheckpointError, match=OUTSIDE):
        resolve_model(snapshot)


def test_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"{MAX_JSON_BYTES + 1} bytes, more than the"):
        read_bytes(path)
    with (tmp_path / "LICENSE").open("wb") as file:
        file.truncate(3 << 30)
    shutil.copytree(GOLDEN / "llama", tmp_path, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match="LICENSE: 3221225472 bytes"):
        convert(tmp_path, tmp_path / "converted")
    assert json.loads(path.read_text())["model_type"] == "llama"
