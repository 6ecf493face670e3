"""Folders that earlier versions converted give what they gave. tests/formats holds a tiny one of
each kind, named by the format of its spec:

1-encoder, 1-classifier, 1-int8, 1-decoder: of 2026-11-20 to 2026-11-22, before version 0.1.0.
2-encoder, 2-moe: of 2026-11-27, before version 0.1.0.

A change of the format adds folders there, and takes none away that is still read.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import reference_encoder
from packhorse import Session
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.tensor import to_float32

FORMATS = Path(__file__).parents[2] / "formats"
BATCH = [[3, 7, 19, 0, 5], [11], [2, 2, 17]]
IDS = np.concatenate(BATCH).astype(np.int32)
OFFSETS = np.array([0, 5, 6, 9])


def expected(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The tensors of a folder, and its last hidden state by the float64 reference."""
    spec = json.loads((FORMATS / name / "packhorse.json").read_text())
    stored = read_safetensors(FORMATS / name / "model.safetensors")
    tensors = {key: to_float32(tensor) for key, tensor in stored.items()}
    return tensors, reference_encoder.encoder(spec, tensors, IDS, OFFSETS)


def load(folder: Path) -> Session:
    return Session.load(folder, max_tokens=16, threads=1, kv_tokens=0)


@pytest.mark.parametrize("name", ["1-encoder", "1-classifier", "1-decoder", "2-encoder", "2-moe"])
def test_earlier_folders_load(name: str) -> None:
    tensors, hidden = expected(name)
    session = load(FORMATS / name)
    outputs = ["hidden", "logits"] if "classifier" in name else ["hidden"]
    result = session.run(BATCH, outputs=outputs)
    np.testing.assert_allclose(result.hidden, hidden, rtol=2e-5, atol=2e-5)
    if "classifier" in name:
        pooled = reference_encoder.pooler(tensors, hidden, OFFSETS)
        logits = pooled @ tensors["classifier.weight"].T + tensors["classifier.bias"]
        np.testing.assert_allclose(result.logits, logits, rtol=2e-5, atol=2e-5)


def test_earlier_quantised_folders_load() -> None:
    """The model is 1-encoder, its weights rounded to 8 bits when it was converted."""
    _, hidden = expected("1-encoder")
    session = load(FORMATS / "1-int8")
    assert session.dtype == "int8"
    found = session.run(BATCH).hidden
    error = np.linalg.norm(found - hidden, axis=-1) / np.linalg.norm(hidden, axis=-1)
    assert 0 < error.max() < 0.05


@pytest.mark.parametrize("format", [0, 3])
def test_other_formats_name_the_command(format: int, tmp_path: Path) -> None:
    folder = shutil.copytree(FORMATS / "1-encoder", tmp_path / "model")
    spec = json.loads((folder / "packhorse.json").read_text())
    (folder / "packhorse.json").write_text(json.dumps({**spec, "format": format}))
    words = (
        f"'format' is {format}, this runtime reads formats 1 and 2.*packhorse convert MODEL FOLDER"
    )
    with pytest.raises(ValueError, match=words):
        load(folder)


def test_every_folder_is_tested() -> None:
    tested = {"1-encoder", "1-classifier", "1-decoder", "1-int8", "2-encoder", "2-moe"}
    assert {path.name for path in FORMATS.iterdir()} == tested
