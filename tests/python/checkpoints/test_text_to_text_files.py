"""Models with an encoder and a decoder, whose files become a spec and tensors: logits by the spec
beside those of transformers, and refusals."""

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
from packhorse_weights import CheckpointError, convert, inspect_checkpoint
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.layout import weight_shapes

FOLDERS = GOLDEN / "text_to_text"
CASES = sorted(path.name for path in FOLDERS.iterdir())
Json = dict[str, Any]


def spec_and_tensors(folder: Path) -> tuple[Json, dict[str, np.ndarray]]:
    found = inspect_checkpoint(folder)
    tensors = {ours: found.tensors[name].data for ours, name in found.names.items()}
    return found.spec, {name: data.astype(np.float64) for name, data in tensors.items()}


def rows(golden: Any, ids: str, ends: str) -> list[np.ndarray]:
    return [golden[ids][a:b] for a, b in pairwise(golden[ends])]


@pytest.mark.parametrize("name", CASES)
def test_logits_as_transformers(name: str) -> None:
    spec, tensors = spec_and_tensors(FOLDERS / name)
    golden = np.load(FOLDERS / name / "golden.npz")
    found = [
        reference_text_to_text.logits(spec, tensors, source, target)
        for source, target in zip(
            rows(golden, "ids", "cu_seqlens"), rows(golden, "target_ids", "target_cu"), strict=True
        )
    ]
    np.testing.assert_allclose(np.concatenate(found), golden["logits"], rtol=0, atol=5e-4)


@pytest.mark.parametrize("name", CASES)
def test_converted_folders_hold_the_same(name: str, tmp_path: Path) -> None:
    spec, tensors = spec_and_tensors(FOLDERS / name)
    folder = convert(FOLDERS / name, tmp_path / "converted")
    assert json.loads((folder / "packhorse.json").read_text()) == spec
    held = read_safetensors(folder / "model.safetensors")
    assert held.keys() == tensors.keys() == weight_shapes(spec).keys()
    for ours, tensor in held.items():
        np.testing.assert_array_equal(tensor.data, tensors[ours].astype(np.float32))
    assert inspect_checkpoint(folder).spec == spec


def changed(name: str, tmp_path: Path, **fields: Any) -> Path:
    folder = Path(shutil.copytree(FOLDERS / name, tmp_path / name))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


def test_files_that_transformers_4_wrote(tmp_path: Path) -> None:
    """Outputs are scaled where words are tied."""
    folder = changed("t5-gated", tmp_path, tie_word_embeddings=False, scale_decoder_outputs=None)
    assert inspect_checkpoint(folder).spec["heads"]["lm"] == {}
    lm = inspect_checkpoint(FOLDERS / "t5").spec["heads"]["lm"]
    assert lm == {"tied": True, "scale": 32**-0.5}


@pytest.mark.parametrize(
    ("name", "scale", "activation"),
    [(name, 1.0, "gelu") for name in ("bart", "mbart", "pegasus", "blenderbot", "marian")]
    + [("m2m-100", 32**0.5, "relu")],
)
def test_fields_that_a_config_leaves_out(
    name: str, scale: float, activation: str, tmp_path: Path
) -> None:
    """Defaults of `scale_embedding` and `activation_function` are those of transformers."""
    folder = changed(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["scale_embedding"], config["activation_function"]
    (folder / "config.json").write_text(json.dumps(config))
    for stack in inspect_checkpoint(folder).spec["stacks"].values():
        assert stack["stem"].get("embedding_scale", 1.0) == pytest.approx(scale)
        blocks = [block for layer in stack["layers"] for block in layer["blocks"]]
        assert {block.get("activation", activation) for block in blocks} == {activation}


def test_encoders_alone(tmp_path: Path) -> None:
    """Classes that have no decoder, and folders of sentence-transformers, which leave it aside."""
    folder = changed("umt5", tmp_path, architectures=["UMT5EncoderModel"])
    spec = inspect_checkpoint(folder).spec
    assert [*spec["stacks"]] == ["encoder"]
    assert "layers.0.attention.relative_bias" in weight_shapes(spec)
    folder = changed("t5", tmp_path)
    shutil.copyfile(GOLDEN / "t5-dense" / "modules.json", folder / "modules.json")
    for part in ("1_Pooling", "2_Dense", "3_Dense"):
        shutil.copytree(GOLDEN / "t5-dense" / part, folder / part)
    found = inspect_checkpoint(folder)
    assert [*found.spec["stacks"]] == ["encoder"]
    assert len(found.spec["embedding"]["dense"]) == 2
    assert not any(name.startswith("decoder") for name in found.names)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("bart", {"architectures": ["BartForSequenceClassification"]}, "is not supported; a model"),
        ("t5", {"architectures": ["T5ForQuestionAnswering"]}, "is not supported; T5 is read as"),
        ("bart", {"encoder_attention_heads": 5}, "d_model 32 is not a multiple of encoder_attent"),
        ("bart", {"max_position_embeddings": 71}, r"has shape \[72, 32\], config.json says \[73"),
        ("marian", {"activation_function": "selu"}, "activation_function 'selu' is not supported"),
        ("m2m-100", {"pad_token_id": 5}, "pad_token_id: expected a whole number from 1 to 1"),
        ("t5", {"num_decoder_layers": 3}, "13 of .* tensors are missing: decoder.block.2"),
        ("t5", {"num_decoder_layers": 1}, "a variant of t5 that is not supported"),
        ("t5", {"feed_forward_proj": "gated-gelu"}, "tensors are missing: .*wi_0"),
        ("umt5", {"feed_forward_proj": "relu"}, "UMT5 with feed-forward blocks that are not gated"),
        ("marian", {"max_position_embeddings": 1 << 40}, "max_position_embeddings: expected"),
        ("bart", {"model_type": "led"}, "'led' is windows with global tokens"),
    ],
)
def test_refused(name: str, fields: Json, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        inspect_checkpoint(changed(name, tmp_path, **fields))
