"""Folders of compressed-tensors that hold integers, beside what the package of that name makes of
them (tests/golden/make_compressed_golden.py), and in sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantized_folders as folders
from checkpoints import GOLDEN
from numpy.typing import NDArray
from packhorse_weights import CheckpointError, inspect_checkpoint, resolve_model
from packhorse_weights.config import Config
from packhorse_weights.formats.quantized.compressed_tensors import open_integers
from packhorse_weights.quantization.grouped import GroupedTensor, unpack_rows
from packhorse_weights.quantization.stored import STORED
from packhorse_weights.tensor import Tensor
from stored_runs import compare

GROUPS = {"int4 groups": 32, "int4 groups zeros": 64, "int4 narrow groups": 16, "int8 groups": 32}
NAMES = (
    *GROUPS,
    "int4 rows",
    "int4 rows zeros",
    "int8 packed rows",
    "int8 rows",
    "int8 rows zeros",
    "int8 whole",
)


def golden(name: str) -> tuple[Config, dict[str, Tensor], NDArray[np.float32]]:
    with np.load(GOLDEN / "compressed_tensors.npz") as arrays:
        parts = {
            key.split("|")[1]: array for key, array in arrays.items() if key.startswith(f"{name}|")
        }
    values = parts.pop("values")
    weights = {
        "num_bits": 4 if "int4" in name else 8,
        "group_size": GROUPS.get(name),
        "symmetric": "zeros" not in name,
    }
    config = Config({"config_groups": {"group_0": {"weights": weights}}}, "config.json")
    return config, {f"x.{part}": Tensor(one, one.dtype.name) for part, one in parts.items()}, values


@pytest.mark.parametrize("name", NAMES)
def test_values_of_the_package(name: str) -> None:
    config, tensors, values = golden(name)
    (found,) = open_integers(
        config, tensors | {"x.input_scale": tensors["x.weight_scale"]}
    ).values()
    np.testing.assert_allclose(found.data, values, rtol=1e-6, atol=1e-9)
    # The runtime has no groups of 16 values of 4 bits: such a layer is floats.
    assert isinstance(found, GroupedTensor) == (name != "int4 narrow groups")
    if isinstance(found, GroupedTensor):
        kept = unpack_rows(found.form, found.packed("x"), values.shape[1])
        assert np.abs(kept - values).max() <= np.abs(values).max() * 2.0**-9


@pytest.mark.parametrize(
    ("bits", "group", "symmetric"), [(4, 32, True), (4, 32, False), (8, 32, True), (4, -1, False)]
)
def test_sessions(bits: int, group: int, symmetric: bool, tmp_path: Path) -> None:
    layers = folders.all_layers(bits, group, symmetric)
    folder = folders.compressed_folder(tmp_path / "m", layers, bits, group)
    assert inspect_checkpoint(folder).stored_dtype == STORED
    compare(folder, layers, tmp_path)


def test_order_by_activation(tmp_path: Path) -> None:
    layers = folders.all_layers(4, 32)
    folders.order_by_activation(layers)
    compare(folders.compressed_folder(tmp_path / "m", layers, 4, 32), layers, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"format": "marlin-24"},
            "compressed-tensors' with format 'marlin-24' is not supported; sup",
        ),
        ({"format": None}, "with format None is not supported"),
        (
            {"quant_method": "bitsandbytes"},
            "'bitsandbytes' is not supported; supported: gptq, awq, fp8",
        ),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config: config_groups = "),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "format = 'sparse-24-bitmask'"),
        ({"config_groups": {"g": {"weights": {"num_bits": 3}}}}, "are no .* values of 3 bits"),
        (
            {"config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 64}}}},
            "group_size is 64",
        ),
        ({"config_groups": {"g": {"weights": {"num_bits": 4}}}}, "group_size is not there"),
        (
            {"config_groups": {"g": {"weights": {"num_bits": 4, "symmetric": False}}}},
            "config's group_size|weight_zero_point' is missing",
        ),
        ({"config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}}}, "type 'float'"),
    ],
)
def test_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    layers = folders.all_layers(4, 32, symmetric=True)
    folder = folders.compressed_folder(tmp_path / "m", layers, 4, 32)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= settings
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        resolve_model(folder)


def test_parts_that_do_not_fit() -> None:
    config, tensors, _ = golden("int4 groups zeros")
    for part in ("weight_shape", "weight_scale", "weight_zero_point"):
        rest = {name: one for name, one in tensors.items() if name != f"x.{part}"}
        with pytest.raises(CheckpointError, match=f"x.{part}' is missing"):
            open_integers(config, rest)
        broken = Tensor(np.zeros((3, 3), np.float32), "float32")
        with pytest.raises(CheckpointError, match=f"x.{part}' is float32"):
            open_integers(config, tensors | {f"x.{part}": broken})
    with pytest.raises(CheckpointError, match="there are no weights in integers"):
        open_integers(config, {"x.weight": Tensor(np.zeros((3, 3), np.float32), "float32")})
