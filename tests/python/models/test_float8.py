"""float8 (e4m3) without a GPU: numbers, folders that hold it, converting to it, refusals. What a
GPU computes is in tests/gpu/test_gpu_float8.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from checkpoints import BERT, edited
from models import tiny_spec, write_model
from numpy.typing import NDArray
from packhorse import Session
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.quantized.float8 import encode
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor, to_float32
from reference_low_precision import e4m3, e4m3_bytes, e4m3_values

LAYERS = ("query", "key", "value", "dense")
IDS = [[5, 9, 2, 33], [12], [1, 3, 3, 7, 4]]


def decode(codes: NDArray[Any]) -> NDArray[np.float32]:
    return to_float32(Tensor(codes, "float8"))


def test_numbers(rng: np.random.Generator) -> None:
    exact = e4m3_values()[:127]
    middles = (exact[1:] + exact[:-1]) / 2
    beside = [np.nextafter(middles, np.float32(to)) for to in (0, 1000)]
    some = rng.normal(0, 1, 5000) * np.exp(rng.normal(0, 4, 5000))
    values = np.concatenate([exact, middles, *beside, some, [448, 464, 1e9, np.inf, 1e-40]])
    values = np.concatenate([values, -values]).astype(np.float32)
    np.testing.assert_array_equal(encode(values), e4m3_bytes(values))
    np.testing.assert_array_equal(decode(encode(values)), e4m3(values))


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Replaces the weights, which `tensors` may be views of."""
    write_safetensors(folder / "new", tensors)
    (folder / "new").replace(folder / "model.safetensors")


def quantized_folder(
    folder: Path, kind: str, rng: np.random.Generator
) -> tuple[Path, dict[str, NDArray[np.float32]]]:
    """A folder of a BERT whose dense layers are e4m3, and what their weights stand for."""
    edited(BERT, folder, {})
    config = json.loads((folder / "config.json").read_text())
    tensors = dict(read_safetensors(folder / "model.safetensors"))
    values: dict[str, NDArray[np.float32]] = {}
    for name, tensor in list(tensors.items()):
        if "encoder.layer" not in name or not name.endswith(".weight") or tensor.data.ndim != 2:
            continue
        weight = to_float32(tensor)
        rows, columns = weight.shape
        if kind == "block":
            scales = rng.uniform(0.5, 2, (-(-rows // 16), -(-columns // 16))).astype(np.float32)
            scales *= np.abs(weight).max() / 448
            wide = np.repeat(np.repeat(scales, 16, 0)[:rows], 16, 1)[:, :columns]
        else:
            most = np.abs(weight).max(axis=1, keepdims=True) if kind == "channel" else weight.max()
            scales = np.asarray(most / 448, np.float32)
            wide = np.broadcast_to(scales, weight.shape)
        codes = encode(weight / wide)
        values[name] = decode(codes) * wide
        end = "weight_scale_inv" if kind == "block" else "weight_scale"
        tensors[name] = Tensor(codes, "float8")
        tensors[name.removesuffix("weight") + end] = Tensor(scales, "float32")
        if kind == "tensor":
            tensors[name.removesuffix("weight") + "input_scale"] = Tensor(scales, "float32")
    config["quantization_config"] = {
        "tensor": {"quant_method": "fp8", "activation_scheme": "static"},
        "channel": {"quant_method": "compressed-tensors", "format": "float-quantized"},
        "block": {"quant_method": "fp8", "weight_block_size": [16, 16]},
    }[kind]
    (folder / "config.json").write_text(json.dumps(config))
    rewrite(folder, tensors)
    return folder, values


@pytest.mark.parametrize("kind", ["tensor", "channel", "block"])
def test_folders_that_come_in_float8(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    folder, values = quantized_folder(tmp_path / "quantized", kind, rng)
    plain = edited(BERT, tmp_path / "plain", {})
    tensors = dict(read_safetensors(plain / "model.safetensors"))
    tensors |= {name: Tensor(value, "float32") for name, value in values.items()}
    rewrite(plain, tensors)
    expected, found = (
        Session.load(path, max_tokens=64).run(IDS, outputs=["hidden"]).hidden
        for path in (plain, folder)
    )
    np.testing.assert_array_equal(found, expected)
    # Layers are handed over as they are in float8, if rows have scales.
    handed = resolve_model(folder).in_dtype("float8").tensors
    assert handed is not None
    name = "layers.0.ffn.up.weight"
    if kind == "block":
        assert handed[name].dtype == "float32"
        return
    assert handed[name].dtype == "float8"
    stands_for = decode(handed[name].data) * handed[name + "_scale"].data[:, None]
    theirs = inspect_checkpoint(folder).names[name]
    np.testing.assert_array_equal(stands_for, values[theirs])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scale: None, "its scales beside it"),
        (lambda scale: scale.data[:3], "expected one number"),
        (lambda scale: scale.data * np.float32("nan"), "holds NaN or Inf"),
    ],
)
def test_parts_that_do_not_fit(
    change: Any, message: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    folder, _ = quantized_folder(tmp_path / "model", "channel", rng)
    tensors = dict(read_safetensors(folder / "model.safetensors"))
    name = next(name for name in tensors if name.endswith("query.weight_scale"))
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = Tensor(np.ascontiguousarray(changed), "float32")
    rewrite(folder, tensors)
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(folder)


def test_blocks_larger_than_a_matrix(tmp_path: Path, rng: np.random.Generator) -> None:
    folder, values = quantized_folder(tmp_path / "model", "tensor", rng)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [2**70, 16]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = dict(read_safetensors(folder / "model.safetensors"))
    name = next(name for name in tensors if name.endswith("query.weight_scale"))
    columns = tensors[name.removesuffix("_scale")].shape[1]
    scales = np.full((1, -(-columns // 16)), tensors[name].data, np.float32)
    tensors[name] = Tensor(scales, "float32")
    rewrite(folder, tensors)
    found = inspect_checkpoint(folder)
    theirs = name.removesuffix("_scale")
    ours = next(ours for ours, one in found.names.items() if one == theirs)
    resolved = resolve_model(folder).in_dtype("float32").tensors
    assert resolved is not None
    np.testing.assert_array_equal(to_float32(resolved[ours]), values[theirs])


def test_empty_matrices_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    folder, _ = quantized_folder(tmp_path / "model", "tensor", rng)
    tensors = dict(read_safetensors(folder / "model.safetensors"))
    name = next(name for name in tensors if name.endswith("query.weight"))
    tensors[name] = Tensor(np.zeros((0, tensors[name].shape[1]), np.uint8), "float8")
    rewrite(folder, tensors)
    with pytest.raises(CheckpointError, match="that is not empty"):
        inspect_checkpoint(folder)


def test_converting(tmp_path: Path) -> None:
    folder = convert(BERT, tmp_path / "converted", quantize="fp8")
    tensors = read_safetensors(folder / "model.safetensors")
    plain = read_safetensors(convert(BERT, tmp_path / "plain") / "model.safetensors")
    weight = to_float32(plain["layers.0.ffn.up.weight"])
    codes, scales = tensors["layers.0.ffn.up.weight"], tensors["layers.0.ffn.up.weight_scale"]
    assert codes.dtype == "float8"
    most = np.abs(weight).max(axis=1)
    np.testing.assert_allclose(scales.data, most / 448, rtol=1e-6)
    np.testing.assert_array_equal(decode(codes.data).max(axis=1).clip(max=448) <= 448, True)
    error = np.abs(decode(codes.data) * scales.data[:, None] - weight)
    assert (error <= 2.0**-4 * np.abs(weight) + most[:, None] * 2.0**-18).all()
    assert tensors["embeddings.word"].dtype == plain["embeddings.word"].dtype
    checkpoint = inspect_checkpoint(folder)
    assert checkpoint.stored_dtype == checkpoint.default_dtype("cuda") == "float8"
    with pytest.raises(ValueError, match="weights are stored in float8"):
        Session.load(folder, dtype="float32", max_tokens=64)
    with pytest.raises(CheckpointError, match="quantised already"):
        convert(folder, tmp_path / "again", quantize="fp8")
    with pytest.raises(CheckpointError, match="group_size is 32"):
        convert(BERT, tmp_path / "groups", quantize="fp8", group_size=32)


@pytest.mark.skipif("cpu" not in packhorse.available_devices(), reason="for the CPU backend")
def test_the_cpu_refuses_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path, tiny_spec())
    with pytest.raises(RuntimeError, match="float8 is not supported on the CPU"):
        Session.load(folder, "cpu", "float8", max_tokens=64)
