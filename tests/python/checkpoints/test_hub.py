"""Models by name: the cache of Hugging Face as it lies on disk, and downloads into it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import packhorse
import pytest
from checkpoints import BERT
from packhorse_weights import convert, find_model, inspect_checkpoint, resolve_model
from packhorse_weights.hub.cache import cache_folder
from packhorse_weights.hub.files import choose_files
from packhorse_weights.spec import stack_of
from tiny_tokenizer import with_tokenizer

NAME = "org/Tiny_model.v1"
OLD, NEW = "0" * 39 + "a", "0" * 39 + "b"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "hub"


def entry_of(cache: Path, name: str = NAME) -> Path:
    return cache / f"models--{name.replace('/', '--')}"


def add_snapshot(cache: Path, commit: str, refs: tuple[str, ...] = ("main",)) -> Path:
    """A snapshot as huggingface_hub makes it: links to files that are named by their content."""
    entry = entry_of(cache)
    blobs = entry / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    source = with_tokenizer(BERT, cache / "source")
    for i, file in enumerate(sorted(source.rglob("*"))):
        if file.is_file():
            blob = blobs / f"{commit[-1]}{i}"
            shutil.copyfile(file, blob)
            link = entry / "snapshots" / commit / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(blob)
    shutil.rmtree(source)
    for ref in refs:
        path = entry / "refs" / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
    return entry / "snapshots" / commit


class Hub(ModuleType):
    """A huggingface_hub that downloads from a folder."""

    def __init__(self, source: Path, files: list[str], commit: str = NEW) -> None:
        super().__init__("huggingface_hub")
        self.source, self.files, self.sha = source, files, commit
        self.calls: list[str] = []

    def model_info(self, name: str, revision: str | None, timeout: float) -> Any:
        self.calls.append("info")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in self.files])

    def snapshot_download(
        self, name: str, revision: str | None, cache_dir: str, allow_patterns: list[str]
    ) -> str:
        self.calls.append("snapshot")
        entry = entry_of(Path(cache_dir), name)
        snapshot = entry / "snapshots" / (self.sha if revision is None else revision)
        for file in allow_patterns:
            (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.source / file, snapshot / file)
        (entry / "refs").mkdir(exist_ok=True)
        (entry / "refs" / "main").write_text(snapshot.name)
        return str(snapshot)

    def hf_hub_download(self, name: str, file: str, revision: str, cache_dir: str) -> str:
        self.calls.append(file)
        entry = entry_of(Path(cache_dir), name)
        if file not in self.files:
            (entry / ".no_exist" / revision).mkdir(parents=True)
            (entry / ".no_exist" / revision / file).touch()
            raise OSError("no such entry")
        return str(shutil.copyfile(self.source / file, entry / "snapshots" / revision / file))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    source = with_tokenizer(BERT, tmp_path / "source")
    (source / "onnx").mkdir()
    (source / "onnx" / "config.json").write_text("{}")
    shutil.copyfile(source / "model.safetensors", source / "pytorch_model.bin")
    files = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    made = Hub(source, files)
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return made


# --- the cache


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HOME": "$HOME/h"}, "/u/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, "/u/.cache/huggingface/hub"),
        ({"HF_HUB_CACHE": "~/c", "HF_HOME": "/h"}, "/u/c"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/h"}, "/old"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"),
    ],
)
def test_where_the_cache_is(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HOME", "/u")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_revisions(cache: Path) -> None:
    old = add_snapshot(cache, OLD, ("v1", "refs/pr/7"))
    new = add_snapshot(cache, NEW)
    assert find_model(NAME) == new
    assert find_model(NAME, "main") == new
    assert find_model(NAME, "v1") == find_model(NAME, "refs/pr/7") == find_model(NAME, OLD) == old
    assert find_model(Path(NAME), OLD) == old
    assert find_model(entry_of(cache)) == new
    assert find_model(str(entry_of(cache)), "v1") == old
    for revision in ("v2", OLD[:-1], "../../x", "/etc/hostname", "..", "a\0b"):
        with pytest.raises(
            (FileNotFoundError, ValueError), match="no revision|null byte|null char"
        ):
            find_model(NAME, revision)
    with pytest.raises(FileNotFoundError, match=f"'v2', only: {OLD}, {NEW}, main, refs/pr/7, v1"):
        find_model(NAME, "v2")


def test_a_reference_that_leads_out(cache: Path, tmp_path: Path) -> None:
    add_snapshot(cache, NEW)
    shutil.copytree(BERT, tmp_path / "elsewhere")
    for text in ("../../../elsewhere", str(tmp_path / "elsewhere"), "..", ""):
        (entry_of(cache) / "refs" / "main").write_text(text)
        with pytest.raises(FileNotFoundError, match="no revision 'main'"):
            find_model(NAME)


def test_a_reference_to_what_is_not_there(cache: Path) -> None:
    add_snapshot(cache, OLD, ("feature/x",))
    (entry_of(cache) / "refs" / "main").write_text(NEW)
    message = rf"no revision 'main' \(the commit '{NEW}', which .*\), only: {OLD}, feature/x\."
    with pytest.raises(FileNotFoundError, match=message):
        find_model(NAME)
    assert find_model(NAME, "feature/x").name == OLD


def test_a_path_wins(cache: Path, tmp_path: Path) -> None:
    add_snapshot(cache, NEW)
    folder = with_tokenizer(BERT, tmp_path / "org" / NAME.split("/")[1])
    assert find_model(NAME) == Path(NAME)
    assert find_model(folder / "model.safetensors") == folder / "model.safetensors"
    with pytest.raises(ValueError, match="revision 'main': .* is a path that has none"):
        find_model(folder, "main")


def test_every_door(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    snapshot = add_snapshot(cache, NEW, ("v1",))
    expected = packhorse.TextModel.load(snapshot).embed("the cat sat")
    model = packhorse.TextModel.load(NAME, revision="v1")
    assert (model.embed("the cat sat") == expected).all()
    session = packhorse.Session.load(NAME, revision="v1")
    spec = inspect_checkpoint(NAME, revision="v1").spec
    assert session.hidden_size == stack_of(spec)["hidden_size"]
    assert resolve_model(NAME, revision="v1").safetensors == [snapshot / "model.safetensors"]
    assert packhorse.plan_memory(NAME, revision="v1").total_bytes > 0
    assert packhorse.text.TextTokenizer.load(NAME, revision="v1").id_of("cat") is not None
    made = convert(NAME, tmp_path / "converted", revision="v1")
    assert (packhorse.TextModel.load(made).embed("the cat sat") == expected).all()
    with pytest.raises(FileNotFoundError, match="no revision 'main'"):
        packhorse.Session.load(NAME)
    with pytest.raises(ValueError, match="go with a folder or a name"):
        packhorse.plan_memory({}, revision="v1")


def test_names_that_are_none(tmp_path: Path) -> None:
    for name in ("a/b/c", str(tmp_path / "none"), "./none", "a--b", "a..b", "-a", "a/", ".a", ""):
        if name:
            with pytest.raises(FileNotFoundError, match="no such file or folder$"):
                find_model(name)
    with pytest.raises(FileNotFoundError, match="'': expected a model's folder, file or name"):
        find_model("")
    with pytest.raises(FileNotFoundError, match="is not there. HF_HUB_OFFLINE"):
        find_model("org/none")


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("bert-base-nli-mean-tokens", "sentence-transformers/bert-base-nli-mean-tokens"),
        ("roberta-base-nli-mean-tokens", "sentence-transformers/roberta-base-nli-mean-tokens"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("gpt2", "gpt2"),
        ("xlm-roberta-large-finetuned-conll03-english",) * 2,
        ("distilbert-base-uncased-finetuned-sst-2-english",) * 2,
        ("org/none", "org/none"),
    ],
)
def test_names_without_an_organisation(name: str, means: str, cache: Path) -> None:
    """Names are read as sentence-transformers reads them."""
    with pytest.raises(FileNotFoundError, match=f"{entry_of(cache, means)} .* download {means}$"):
        find_model(name)


def test_names_without_an_organisation_that_the_cache_has(cache: Path) -> None:
    add_snapshot(cache, NEW)
    for name in ("cross-encoder/tiny", "sentence-transformers/tiny", "tiny"):
        shutil.copytree(entry_of(cache), entry_of(cache, name), symlinks=True)
        assert find_model("tiny") == entry_of(cache, name) / "snapshots" / NEW


# --- what to do where it is not there


def test_offline(cache: Path) -> None:
    fetch = f"HF_HUB_OFFLINE is set.*HF_HUB_OFFLINE=0 hf download {NAME} --revision v1"
    with pytest.raises(FileNotFoundError, match=f"no such file.*{entry_of(cache)}.*{fetch}"):
        find_model(NAME, "v1")


def test_offline_by_another_variable(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "yes")
    with pytest.raises(FileNotFoundError, match="TRANSFORMERS_OFFLINE is set"):
        find_model(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert find_model(NAME).name == NEW
    assert hub.calls == ["info", "snapshot"]


def test_without_huggingface_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError) as raised:
        packhorse.Session.load(NAME)
    message = str(raised.value)
    assert "pip install huggingface_hub (or, in a clone of Packhorse: pip install '.[hub]')" in (
        message
    )
    assert "hf download org/Tiny_model.v1 --local-dir Tiny_model.v1" in message
    snapshot = add_snapshot(cache, NEW)
    assert find_model(NAME) == snapshot


@pytest.mark.parametrize(
    ("lost", "what"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "weights"),
    ],
)
def test_an_incomplete_snapshot(cache: Path, lost: str, what: str) -> None:
    (add_snapshot(cache, NEW) / lost).unlink()
    (entry_of(cache) / "snapshots" / NEW / "modules.json").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match=f"{NEW} is incomplete: it lacks {what}"):
        find_model(NAME)
    with pytest.raises(FileNotFoundError, match="no model; in the Hugging Face cache"):
        find_model(entry_of(cache))


def test_incomplete_shards_and_modules(cache: Path) -> None:
    snapshot = add_snapshot(cache, NEW)
    (snapshot / "model.safetensors").rename(snapshot / "model-00001-of-00002.safetensors")
    index = {
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002.safetensors"}
    }
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match="lacks weights"):
        find_model(NAME)
    (snapshot / "model-00002.safetensors").touch()
    assert find_model(NAME) == snapshot
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"type": f"x.{kind}", "path": f"{i}_{kind}" * (i > 0)} for i, kind in enumerate(kinds)
    ]
    (snapshot / "modules.json").unlink(missing_ok=True)
    (snapshot / "modules.json").write_text(json.dumps(modules))
    shutil.rmtree(snapshot / "1_Pooling", ignore_errors=True)
    with pytest.raises(FileNotFoundError, match="lacks the module 1_Pooling"):
        find_model(NAME)
    (snapshot / "1_Pooling").mkdir()
    assert find_model(NAME) == snapshot


# --- downloads


def test_download(cache: Path, hub: Hub) -> None:
    snapshot = find_model(NAME)
    assert snapshot == entry_of(cache) / "snapshots" / NEW
    assert packhorse.Session.load(NAME).hidden_size == 32
    assert not (snapshot / "onnx").exists()
    assert not (snapshot / "pytorch_model.bin").exists()
    assert hub.calls.count("snapshot") == 1  # the second time it is there


def test_download_of_what_is_missing(cache: Path, hub: Hub) -> None:
    (add_snapshot(cache, OLD) / "model.safetensors").unlink()
    assert find_model(entry_of(cache)).name == NEW
    assert find_model(NAME).name == NEW


def test_modules_that_nobody_asked_for_before(cache: Path, hub: Hub) -> None:
    """transformers does not download modules.json: without it, pooling would be another."""
    snapshot = add_snapshot(cache, NEW)
    (snapshot / "modules.json").unlink()
    shutil.rmtree(snapshot / "1_Pooling")
    assert find_model(NAME) == snapshot
    assert (snapshot / "modules.json").exists()
    assert (snapshot / "1_Pooling" / "config.json").exists()
    hub.calls.clear()
    find_model(NAME)
    assert hub.calls == []


def test_no_modules_is_kept_in_mind(cache: Path, hub: Hub) -> None:
    snapshot = add_snapshot(cache, NEW)
    (snapshot / "modules.json").unlink(missing_ok=True)
    hub.files = [file for file in hub.files if file != "modules.json"]
    assert find_model(NAME) == find_model(NAME) == snapshot
    assert hub.calls == ["info", "modules.json"]


def test_a_download_that_fails(cache: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route\n\nto host")

    monkeypatch.setattr(hub, "model_info", fail)
    with pytest.raises(
        FileNotFoundError, match=f"ConnectionError: no route to host. .*: hf download {NAME}$"
    ):
        find_model(NAME)
    snapshot = add_snapshot(cache, NEW)
    for path in (snapshot / "tokenizer.json", snapshot / "modules.json"):
        path.unlink(missing_ok=True)
    assert find_model(NAME) == snapshot  # enough for a session
    assert (
        hub.calls == []
    )  # huggingface_hub asks for single files again and again, for half a minute


def test_files_that_are_needed() -> None:
    files = {
        "config.json": True,
        "modules.json": True,
        "README.md": False,
        ".gitattributes": False,
        "LICENSE": True,
        "tokenizer.json": True,
        "vocab.txt": True,
        "sentencepiece.bpe.model": True,
        "sparse_linear.pt": True,
        "training_args.bin": False,
        "model.safetensors.index.json": True,
        "model-00001-of-00002.safetensors": True,
        "model-00002-of-00002.safetensors": True,
        "model.fp16.safetensors": False,
        "pytorch_model.bin": False,
        "pytorch_model.bin.index.json": False,
        "tf_model.h5": False,
        "flax_model.msgpack": False,
        "rust_model.ot": False,
        "1_Pooling/config.json": True,
        "2_Dense/config.json": True,
        "2_Dense/pytorch_model.bin": True,
        "3_Dense/model.safetensors": True,
        "3_Dense/pytorch_model.bin": False,
        "query_0_Transformer/model.safetensors": True,
        "onnx/model.onnx": False,
        "onnx/config.json": False,
        "openvino/openvino_model.xml": False,
        "original/model.safetensors": False,
        "checkpoint-100/model.safetensors": False,
    }
    assert choose_files(files) == sorted(name for name, wanted in files.items() if wanted)
    whole = {"model.safetensors"}
    assert choose_files({*whole, *files} - {"config.json"}) == sorted(
        whole
        | {name for name, wanted in files.items() if wanted and not name.startswith("model")}
        - {"config.json"}
    )


# --- beside huggingface_hub itself


def test_as_huggingface_hub_finds_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    add_snapshot(cache, OLD, ("v1", "refs/pr/7"))
    add_snapshot(cache, NEW)
    for revision in (None, "main", "v1", "refs/pr/7", OLD):
        theirs = hub.snapshot_download(
            NAME, revision=revision, cache_dir=str(cache), local_files_only=True
        )
        assert find_model(NAME, revision) == Path(theirs)
        file = hub.try_to_load_from_cache(NAME, "config.json", str(cache), revision)
        assert find_model(NAME, revision) / "config.json" == Path(file)


def test_huggingface_hub_takes_what_is_asked_of_it() -> None:
    """The names and arguments that downloads use."""
    import inspect

    hub = pytest.importorskip("huggingface_hub")
    for function, arguments in (
        ("model_info", {"revision": None, "timeout": 1.0}),
        ("snapshot_download", {"revision": None, "cache_dir": "c", "allow_patterns": []}),
    ):
        inspect.signature(getattr(hub, function)).bind(NAME, **arguments)
    inspect.signature(hub.hf_hub_download).bind(NAME, "f", revision=NEW, cache_dir="c")
