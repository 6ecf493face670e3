"""The dtype of a session that is asked for none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, GOLDEN, edited
from command_line import Cli, failed
from packhorse_weights import Tensor, convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.safetensors import write_safetensors
from packhorse_weights.tensor import cast
from tiny_tokenizer import with_tokenizer

BATCH = [[1, 2, 3], [4, 5]]


def as_dtype(dtype: str) -> Any:
    def change(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            # Published files often keep norms in float32.
            if tensor.dtype == "float32" and "LayerNorm" not in name:
                tensors[name] = cast(tensor, dtype, name)

    return change


@pytest.mark.parametrize(
    ("stored", "cpu", "cuda"),
    [
        ("float32", "float32", "float16"),
        ("float16", "float32", "float16"),
        ("bfloat16", "float32", "bfloat16"),
    ],
)
def test_by_what_is_stored(stored: str, cpu: str, cuda: str, tmp_path: Path) -> None:
    folder = edited(BERT, tmp_path / "model", tensors=as_dtype(stored))
    for path in (folder, convert(folder, tmp_path / "converted")):
        checkpoint = inspect_checkpoint(path)
        assert checkpoint.stored_dtype == resolve_model(path).stored_dtype == stored
        assert checkpoint.default_dtype("cpu") == cpu
        assert checkpoint.default_dtype("cpu", generates=True) == stored
        assert checkpoint.default_dtype("cuda") == checkpoint.default_dtype("cuda:1") == cuda


def test_families_beyond_float16() -> None:
    """T5's numbers overflow float16."""
    folder = GOLDEN / "text_to_text"
    for name in ("t5", "mt5", "umt5"):
        assert inspect_checkpoint(folder / name).default_dtype("cuda") == "bfloat16"
        assert inspect_checkpoint(folder / name).default_dtype("cpu") == "float32"
    assert inspect_checkpoint(folder / "bart").default_dtype("cuda") == "float16"


def test_of_a_session(cli: Cli, tmp_path: Path) -> None:
    assert packhorse.Session.load(BERT).dtype == "float32"
    assert packhorse.Session.load(BERT, dtype="int8").dtype == "int8"
    folder = convert(with_tokenizer(BERT, tmp_path / "bert"), tmp_path / "int8", quantize="int8")
    assert inspect_checkpoint(folder).default_dtype("cpu") == "int8"
    session = packhorse.Session.load(folder)
    assert session.dtype == "int8"
    asked = packhorse.Session.load(folder, dtype="int8")
    np.testing.assert_array_equal(session.run(BATCH).hidden, asked.run(BATCH).hidden)
    for options in ({}, {"max_tokens": 100}):
        plan = packhorse.plan_memory(folder, **options)
        assert plan == packhorse.plan_memory(folder, dtype="int8", **options)
        assert plan != packhorse.plan_memory(session.config, **options)
    refused = (
        "dtype 'bfloat16', but the weights are stored in int8: load this model with dtype int8"
    )
    for load in (packhorse.Session.load, packhorse.plan_memory, packhorse.TextModel.load):
        with pytest.raises(ValueError, match=refused):
            load(folder, dtype="bfloat16")  # type: ignore[operator]
    pytest.importorskip("typer")
    assert failed(cli("inspect", folder, "--dtype", "bfloat16"), refused)


def test_of_a_text_model(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    source = with_tokenizer(BERT, tmp_path / "bert")
    assert packhorse.TextModel.load(source).session.dtype == "float32"
    folder = convert(source, tmp_path / "int8", quantize="int8")
    assert packhorse.TextModel.load(folder).session.dtype == "int8"


def test_of_a_folder_without_tensors(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "packhorse.json").write_bytes((tiny_model / "packhorse.json").read_bytes())
    write_safetensors(tmp_path / "model.safetensors", {})
    assert inspect_checkpoint(tmp_path).stored_dtype == "float32"
    with pytest.raises(ValueError, match="missing"):
        packhorse.Session.load(tmp_path)


def test_of_a_spec(tiny_model: Path) -> None:
    spec = resolve_model(tiny_model).spec
    assert packhorse.plan_memory(spec) == packhorse.plan_memory(spec, dtype="float32")


@pytest.mark.parametrize("dtype", ["float4", "float64", "int32", "", "Float32"])
def test_dtypes_that_can_be_asked_for(tiny_model: Path, dtype: str) -> None:
    cpu = "float32, bfloat16, float16, int8"
    for load in (packhorse.Session.load, packhorse.plan_memory):
        with pytest.raises(ValueError, match=f"'{dtype}'; known: {cpu} on cpu$"):
            load(tiny_model, dtype=dtype)  # type: ignore[operator]
        known = "known: float16, bfloat16, int8, float8 on cuda:0$"
        with pytest.raises(ValueError, match=f"'{dtype}'; {known}"):
            load(tiny_model, "cuda:0", dtype)  # type: ignore[operator]
        with pytest.raises(RuntimeError, match="float8 is not supported on the CPU: use float32"):
            load(tiny_model, dtype="float8")  # type: ignore[operator]
