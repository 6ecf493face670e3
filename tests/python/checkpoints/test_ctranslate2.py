"""Folders of CTranslate2: log-probabilities by the spec beside that library's own, and settings."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_text_to_text
from checkpoints import GOLDEN
from packhorse_weights import CheckpointError, convert, inspect_checkpoint, resolve_model
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.generation_files import generation_config

FOLDERS = GOLDEN / "ctranslate2"
CASES = sorted(path.name for path in FOLDERS.iterdir())
START = {"mbart-bfloat16": 50}  # a language, which the caller names


def floats(tensor: Any) -> np.ndarray:
    data = tensor.data
    if tensor.dtype == "bfloat16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float64)


def log_probs(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_as_ctranslate2(name: str) -> None:
    found = inspect_checkpoint(FOLDERS / name)
    tensors = {ours: floats(found.tensors[theirs]) for ours, theirs in found.names.items()}
    settings = generation_config(FOLDERS / name) or {}
    start = START.get(name, settings.get("decoder_start_token_id"))
    golden = np.load(FOLDERS / name / "golden.npz")
    rows: list[float] = []
    for (a, b), (c, d) in zip(
        pairwise(golden["cu_seqlens"]), pairwise(golden["target_cu"]), strict=True
    ):
        target = golden["target_ids"][c:d]
        whole = np.concatenate([[start], target]).astype(int)
        logits = reference_text_to_text.logits(found.spec, tensors, golden["ids"][a:b], whole)
        wanted = [*target, settings["eos_token_id"]]
        rows += list(log_probs(logits)[np.arange(len(wanted)), wanted])
    np.testing.assert_allclose(rows, golden["log_probs"], rtol=0, atol=5e-4)


@pytest.mark.parametrize("name", ["marian-int8", "m2m-100-int16", "mbart-bfloat16"])
def test_converted_and_in_place(name: str, tmp_path: Path) -> None:
    """A session loads what a converted folder holds."""
    model = resolve_model(FOLDERS / name)
    assert model.tensors is not None
    folder = convert(FOLDERS / name, tmp_path / "converted")
    held = read_safetensors(folder / "model.safetensors")
    assert held.keys() == model.tensors.keys()
    for ours, tensor in held.items():
        np.testing.assert_array_equal(tensor.data, model.tensors[ours].data)
    assert json.loads((folder / "packhorse.json").read_text()) == model.spec
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings == generation_config(FOLDERS / name)


def test_a_decoder_that_begins_with_zeros() -> None:
    """It gets a token for that, which has a row of zeros and is never meant."""
    found = inspect_checkpoint(FOLDERS / "marian")
    tokens = json.loads((FOLDERS / "marian" / "shared_vocabulary.json").read_text())
    settings = generation_config(FOLDERS / "marian")
    assert settings == {"eos_token_id": 0, "decoder_start_token_id": len(tokens)}
    table = found.tensors["encoder.embeddings.word"].data
    assert table.shape[0] == len(tokens) + 1
    assert not table[-1].any()
    assert found.tensors["lm.decoder.bias"].data[-1] == -1e4


def copy(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDERS / name, tmp_path / name))


def test_vocabularies(tmp_path: Path) -> None:
    folder = copy("marian", tmp_path)
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    (folder / "shared_vocabulary.json").unlink()
    with pytest.raises(CheckpointError, match="no shared_vocabulary.json, nor source_vocabulary"):
        inspect_checkpoint(folder)
    for side in ("source", "target"):
        (folder / f"{side}_vocabulary.txt").write_text("\n".join(tokens) + "\n")
    assert inspect_checkpoint(folder).spec == inspect_checkpoint(FOLDERS / "marian").spec
    (folder / "target_vocabulary.json").write_text(json.dumps(tokens[:-1]))
    with pytest.raises(CheckpointError, match="a vocabulary of 98 tokens, but the decoder's table"):
        inspect_checkpoint(folder)
    (folder / "target_vocabulary.json").write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match="expected a list of texts"):
        inspect_checkpoint(folder)


def test_settings_that_name_no_token(tmp_path: Path) -> None:
    folder = copy("marian", tmp_path)
    (folder / "config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    with pytest.raises(CheckpointError, match="eos_token '<eos>' is no token of the target's"):
        inspect_checkpoint(folder)


def test_a_vocabulary_map_changes_nothing(tmp_path: Path) -> None:
    """As in CTranslate2, which reads it only where it is told to."""
    folder = shutil.copytree(FOLDERS / "marian", tmp_path / "mapped")
    (folder / "vmap.txt").write_text("token 5\ttoken 6 token 7\n")
    plain, mapped = inspect_checkpoint(FOLDERS / "marian"), inspect_checkpoint(folder)
    assert mapped.spec == plain.spec
    assert mapped.names == plain.names
