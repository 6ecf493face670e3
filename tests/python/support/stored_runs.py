"""Runs of models whose weights stay quantised in groups, and comparisons with the floats that these
stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import quantized_folders as folders
from numpy.typing import NDArray
from packhorse_weights import resolve_model
from packhorse_weights.quantization.grouped import unpack_rows
from packhorse_weights.quantization.stored import STORED

IDS = [[5, 9, 2, 33, 17, 40, 8], [12], [61, 3, 3, 7, 50]]


def hidden(path: Path, dtype: Any, **options: Any) -> NDArray[np.float32]:
    with packhorse.Session.load(
        path, dtype=dtype, kv_tokens=0, max_tokens=64, **options
    ) as session:
        assert session.dtype == (dtype or STORED)
        return session.run(IDS, outputs=["hidden"]).hidden


def near(found: NDArray[Any], expected: NDArray[Any], share: float) -> None:
    """Checks that differences are small beside the values, in the mean of squares, but not 0."""
    assert np.isfinite(found).all()
    error = np.sqrt(np.mean(np.square(found - expected)) / np.mean(np.square(expected)))
    assert 0 < error < share


def compare(folder: Path, layers: dict[str, folders.Layer], tmp_path: Path) -> None:
    """Checks that a folder is the same model as floats, bit for bit, and that quantised layers stay
    so."""
    floats = folders.float_folder(tmp_path / "floats", layers)
    expected = hidden(floats, "float32")
    np.testing.assert_array_equal(hidden(folder, "float32"), expected)
    near(hidden(folder, None), expected, 0.03)
    spec = resolve_model(folder).in_dtype(STORED).spec
    assert sum(len(entry["layers"]) for entry in spec["quantized"]) == len(layers)
    files = resolve_model(folder)
    assert files.tensors is not None
    theirs = {"layers.0.attention.key": "self_attn.k_proj", "layers.0.ffn.down": "mlp.down_proj"}
    for ours, name in theirs.items():
        tensor: Any = files.tensors[f"{ours}.weight"]
        values = unpack_rows(tensor.form, tensor.packed(ours), tensor.shape[1])
        original = folders.values(layers[f"model.layers.0.{name}"])
        np.testing.assert_array_equal(tensor.data, original)
        if tensor.input_order is not None:
            original = original[:, tensor.input_order]
        # A minimum is a scale times a zero point, rounded to float16.
        np.testing.assert_allclose(values, original, rtol=0, atol=2.0**-12)
