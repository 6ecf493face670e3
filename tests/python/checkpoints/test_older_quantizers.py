"""Folders of older tools for GPTQ and AWQ: settings in files of their own, under other names, and
biases of zeros in layers without a bias."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantized_folders as folders
from packhorse_weights import CheckpointError, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor
from stored_runs import compare


def with_settings(folder: Path, name: str, settings: dict[str, Any]) -> Path:
    (folder / name).write_text(json.dumps(settings))
    return folder


def with_biases(folder: Path, value: float) -> Path:
    tensors = dict(read_safetensors(folder / "model.safetensors"))
    for name in [one for one in tensors if one.endswith(".scales")]:
        rows = tensors[name].shape[1]
        bias = Tensor(np.full(rows, value, np.float16), "float16")
        tensors[name.replace("scales", "bias")] = bias
    (folder / "model.safetensors").unlink()  # views of the mapped file stay
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def test_settings_of_autogptq(tmp_path: Path) -> None:
    layers = folders.all_layers(4, 32)
    packed = {name: folders.gptq(one, 4) for name, one in layers.items()}
    folder = folders.write_folder(tmp_path / "m", packed, None)
    settings = {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": False, "sym": False}
    with_settings(folder, "quantize_config.json", settings | {"model_name_or_path": None})
    compare(folder, layers, tmp_path)
    name = "gptq_model-4bit-32g"
    (folder / "model.safetensors").rename(folder / f"{name}.safetensors")
    with_settings(folder, "quantize_config.json", settings | {"model_file_base_name": name})
    compare(folder, layers, tmp_path / "named")
    with_settings(folder, "quantize_config.json", {"model_file_base_name": "../x"})
    with pytest.raises(CheckpointError, match="quantize_config.json: '../x.safetensors' leads out"):
        resolve_model(folder)
    (folder / f"{name}.safetensors").rename(folder / "model.safetensors")
    with_settings(folder, "quantize_config.json", settings | {"is_marlin_format": True})
    with pytest.raises(CheckpointError, match="quantize_config.json: is_marlin_format = True"):
        resolve_model(folder)
    with_settings(folder, "quantize_config.json", settings | {"bits": 3})
    with pytest.raises(CheckpointError, match="quantize_config.json: bits = 3"):
        resolve_model(folder)


def test_settings_of_autoawq(tmp_path: Path) -> None:
    layers = folders.all_layers(4, 32)
    packed = {name: folders.awq(one) for name, one in layers.items()}
    folder = folders.write_folder(tmp_path / "m", packed, None)
    settings = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    compare(with_settings(folder, "quant_config.json", settings), layers, tmp_path)
    named = {"quant_method": "awq", **settings}
    compare(folders.write_folder(tmp_path / "n", packed, named), layers, tmp_path / "named")
    with_settings(folder, "quant_config.json", settings | {"version": "GEMV"})
    with pytest.raises(CheckpointError, match="quant_config.json: version 'GEMV'"):
        resolve_model(folder)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_biases_of_zeros(zero: float, tmp_path: Path) -> None:
    layers = folders.all_layers(4, 32)
    folder = folders.gptq_folder(tmp_path / "m", layers, 4, desc_act=False)
    compare(with_biases(folder, zero), layers, tmp_path)


def test_biases_of_other_numbers(tmp_path: Path) -> None:
    folder = folders.gptq_folder(tmp_path / "m", folders.all_layers(4, 32), 4, desc_act=False)
    with pytest.raises(CheckpointError, match="a variant of llama .* it also has .*k_proj.bias"):
        resolve_model(with_biases(folder, 1e-3))
