"""The converter: whole folders, dtypes, and what it writes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import packhorse_weights
import pytest
from checkpoints import BERT, GOLDEN, edited
from packhorse_weights import CheckpointError, Tensor, convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.layout import STACKS, weight_shapes
from packhorse_weights.spec import stack_of, stem_of
from packhorse_weights.tensor import cast, to_float32
from tiny_tokenizer import with_tokenizer

FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/config.json"))


# --- whole folders


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_convert_keeps_every_value(folder: Path, tmp_path: Path) -> None:
    source = inspect_checkpoint(folder)
    convert(folder, tmp_path / "out")
    spec = json.loads((tmp_path / "out" / "packhorse.json").read_text())
    written = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert spec == source.spec
    stacks = [stack for stack in STACKS if f"layers.0.{stack}.weight" in written]
    assert {name: tensor.shape for name, tensor in written.items()} == weight_shapes(spec, stacks)
    for ours, theirs in source.names.items():
        assert written[ours].dtype == source.tensors[theirs].dtype
        np.testing.assert_array_equal(written[ours].data, source.tensors[theirs].data)

    again = inspect_checkpoint(tmp_path / "out")
    assert again.converted
    assert again.spec == spec
    convert(folder, tmp_path / "twice")
    for name in ("packhorse.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_resolve_agrees_with_convert(folder: Path, tmp_path: Path) -> None:
    """Loading in place gives the tensors and the spec that a converted folder gives."""
    convert(folder, tmp_path / "out")
    written = read_safetensors(tmp_path / "out" / "model.safetensors")
    files = resolve_model(folder)
    assert files.spec == json.loads((tmp_path / "out" / "packhorse.json").read_text())
    if files.tensors is None:
        theirs: dict[str, Tensor] = {}
        for path in files.safetensors:
            theirs |= read_safetensors(path)
        found = {ours: theirs[name] for ours, name in files.names.items()}
    else:
        assert not files.safetensors
        found = files.tensors
    assert found.keys() == written.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.data, written[name].data)
        assert tensor.data.flags.c_contiguous

    converted = resolve_model(tmp_path / "out")
    assert converted.safetensors == [tmp_path / "out" / "model.safetensors"]
    assert converted.names == {name: name for name in written}
    assert converted.tensors is None


def test_specs() -> None:
    spec = resolve_model(GOLDEN / "bert-312").spec
    assert spec == {
        "format": 2,
        "family": "bert",
        "max_seqlen": 120,
        "stacks": {
            "encoder": {
                "hidden_size": 312,
                "stem": {
                    "kind": "tokens",
                    "vocab_size": 100,
                    "type_vocab_size": 2,
                    "positions": {"kind": "learned", "count": 120, "offset": 0},
                },
                "norm": {"kind": "layer", "placement": "post", "eps": 1e-12},
                "layers": [
                    {
                        "blocks": [
                            {
                                "kind": "self_attention",
                                "num_heads": 12,
                                "num_kv_heads": 12,
                                "head_dim": 26,
                                "mask": "bidirectional",
                            },
                            {"kind": "feed_forward", "size": 96, "activation": "gelu"},
                        ]
                    }
                ],
            }
        },
        "embedding": {"pooling": "mean_sqrt", "normalize": False},
    }
    for name, pooler in (("roberta", True), ("xlm-roberta", True), ("camembert", False)):
        spec = resolve_model(GOLDEN / name).spec
        assert spec["family"] == name
        positions = {"kind": "learned", "count": 120, "offset": 2, "padding_id": 1}
        assert stem_of(spec)["positions"] == positions
        assert spec["max_seqlen"] == 118
        assert stem_of(spec)["type_vocab_size"] == 1
        assert stack_of(spec)["norm"]["eps"] == 1e-5
        assert ("pooler" in spec.get("heads", {})) == pooler


# --- dtypes


def test_bfloat16_rounds_to_nearest_even() -> None:
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F800000, 0xFF800000, 0x80000000, 1],
        np.uint32,
    )
    result = cast(Tensor(bits.view(np.float32), "float32"), "bfloat16", "x")
    expected = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0xFF80, 0x8000, 0]
    np.testing.assert_array_equal(result.data, expected)
    nan = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(to_float32(cast(Tensor(nan, "float32"), "bfloat16", "x"))).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_convert_dtype(dtype: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(BERT, tmp_path / "out", dtype, progress=lambda done, total: seen.append((done, total)))
    source = inspect_checkpoint(BERT)
    tolerance = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    written = read_safetensors(tmp_path / "out" / "model.safetensors")
    for ours, theirs in source.names.items():
        assert written[ours].dtype == dtype
        np.testing.assert_allclose(
            to_float32(written[ours]), source.tensors[theirs].data, rtol=tolerance, atol=1e-7
        )
    assert seen[-1][0] == seen[-1][1] == sum(tensor.data.nbytes for tensor in written.values())
    assert seen == sorted(seen)


def test_float64_becomes_float32(tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        for name, tensor in weights.items():
            weights[name] = Tensor(tensor.data.astype(np.float64), "float64")

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    files = resolve_model(folder)
    assert files.tensors is not None
    expected = read_safetensors(BERT / "model.safetensors")
    for ours, theirs in files.names.items():
        assert files.tensors[ours].dtype == "float32"
        np.testing.assert_array_equal(files.tensors[ours].data, expected[theirs].data)


@pytest.mark.parametrize("value", [70000.0, -1e30, 65520.0])
def test_float16_overflow_is_an_error(value: float, tmp_path: Path) -> None:
    def tensors(weights: dict[str, Any]) -> None:
        data = weights["pooler.dense.bias"].data.copy()
        data[3] = value
        weights["pooler.dense.bias"] = Tensor(data, "float32")

    folder = edited(BERT, tmp_path / "m", tensors=tensors)
    with pytest.raises(CheckpointError, match=r"'pooler\.bias' holds .*does not fit float16"):
        convert(folder, tmp_path / "out", "float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_inf_and_nan_are_kept(value: float) -> None:
    for dtype in ("float16", "bfloat16"):
        result = to_float32(cast(Tensor(np.array([value], np.float32), "float32"), dtype, "x"))
        np.testing.assert_array_equal(result, [value])


def test_integer_weights_and_unknown_dtypes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'x' is int8"):
        cast(Tensor(np.zeros(3, np.int8), "int8"), "float32", "x")
    with pytest.raises(CheckpointError, match="'int4' is not one of float32"):
        convert(BERT, tmp_path / "out", "int4")
    assert not list(tmp_path.iterdir())


# --- what is written


def test_other_readers_agree(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    convert(BERT, tmp_path / "out", "float16")
    theirs = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    ours = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(value, ours[name].data)


def test_mixed_dtypes_are_aligned(tmp_path: Path) -> None:
    tensors = {
        "a": Tensor(np.arange(3, dtype=np.float16), "float16"),
        "b": Tensor(np.arange(5, dtype=np.float32), "float32"),
    }
    write_safetensors(tmp_path / "m", tensors)
    for name, tensor in read_safetensors(tmp_path / "m").items():
        np.testing.assert_array_equal(tensor.data, tensors[name].data)
        assert tensor.data.flags.aligned


def test_large_tensors_are_written_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse_weights.tensor.BLOCK", 7)
    convert(BERT, tmp_path / "blocks", "bfloat16")
    monkeypatch.undo()
    convert(BERT, tmp_path / "whole", "bfloat16")
    name = "model.safetensors"
    assert (tmp_path / "blocks" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_tokenizer_files_travel(tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        (folder / name).write_text("{}")
    (folder / "optimizer.pt").write_text("{}")
    convert(folder, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.safetensors",
        "packhorse.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_settings_of_the_transformer_travel(name: str, tmp_path: Path) -> None:
    """Under their older names too; and none that the model itself does not read."""
    pytest.importorskip("tokenizers")
    folder = tmp_path / "m"
    folder.mkdir()
    model = with_tokenizer(BERT, folder / "0_Transformer")
    (model / "modules.json").unlink(missing_ok=True)
    kind = "sentence_transformers.models.Transformer"
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    for path, expected in ((tmp_path / "without", False), (tmp_path / "with", True)):
        if expected:
            (model / f"sentence_{name}_config.json").write_text('{"do_lower_case": true}')
        before, after = (
            packhorse.text.TextTokenizer.load(one) for one in (folder, convert(folder, path))
        )
        assert before.config.lower_case is after.config.lower_case is expected


def test_git_lfs_pointers_do_not_travel(tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "m")
    (folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    with pytest.raises(CheckpointError, match="m/tokenizer.json: a Git LFS pointer"):
        convert(folder, tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "new" / "out"
    convert(BERT, out)
    with pytest.raises(CheckpointError, match="not empty"):
        convert(BERT, out)
    convert(out, out, "float16", overwrite=True)  # a converted folder over itself
    assert read_safetensors(out / "model.safetensors")["pooler.bias"].dtype == "float16"
    (tmp_path / "empty").mkdir()
    convert(BERT, tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="not a folder"):
        convert(BERT, tmp_path / "file", overwrite=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="not a converted folder"):
        convert(BERT, tmp_path / "precious", overwrite=True)
    monkeypatch.chdir(tmp_path / "empty")
    for here in (".", tmp_path / "empty", tmp_path / "new" / ".." / "empty"):
        with pytest.raises(CheckpointError, match="is the current folder"):
            convert(BERT, here, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["out"]


def test_a_failed_conversion_leaves_the_old_folder(tmp_path: Path) -> None:
    convert(BERT, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt(f"{done} of {total}")

    with pytest.raises(KeyboardInterrupt):
        convert(GOLDEN / "bert-relu", tmp_path / "out", progress=stop, overwrite=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failed_rename_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may not be able to exchange two folders in one step."""
    convert(BERT, tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError("disk trouble")
        return rename(self, target)

    monkeypatch.setattr("packhorse_weights.new_folder._exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk trouble"):
        convert(GOLDEN / "bert-relu", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- the package


def test_import_is_light() -> None:
    """No framework, and not the zip reader either: a session imports this when it loads."""
    path = str(Path(packhorse_weights.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {path!r}); import numpy; " + (
        "before = set(sys.modules); import packhorse_weights; "
        "print(sorted({'torch', 'safetensors', 'zipfile', 'transformers', 'pickle'} "
        "& (set(sys.modules) - before)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
