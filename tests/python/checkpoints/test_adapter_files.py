"""Folders of PEFT: what is read of them, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packhorse_weights import CheckpointError, read_adapter, resolve_model
from packhorse_weights.adapters.peft import read_adapter_rank
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor

GOLDEN = Path(__file__).parents[2] / "golden"
ADAPTERS = GOLDEN / "adapters"
SPEC = resolve_model(GOLDEN / "generation" / "llama").spec
FIRST = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of an adapter that may be changed."""
    return Path(shutil.copytree(ADAPTERS / "llama", tmp_path / "adapter"))


def configure(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit(folder: Path, **changes: Tensor | None) -> None:
    """Tensors of FIRST by the ends of their names; None takes one away."""
    path = folder / "adapter_model.safetensors"
    tensors = dict(read_safetensors(path))
    for name, tensor in changes.items():
        tensors.pop(f"{FIRST}.{name}.weight", None)
        if tensor is not None:
            tensors[f"{FIRST}.{name}.weight"] = tensor
    tensors = {name: Tensor(one.data.copy(), one.dtype) for name, one in tensors.items()}
    write_safetensors(path, tensors)


def zeros(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32), "float32")


def test_names_ranks_and_scales() -> None:
    found = read_adapter(ADAPTERS / "llama", SPEC)
    stored = read_safetensors(ADAPTERS / "llama" / "adapter_model.safetensors")
    assert (found.rank, read_adapter_rank(ADAPTERS / "llama")) == (5, 5)
    assert len(found.tensors) == len(stored) == 2 * 7 * 2
    for theirs, ours, alpha, rank in (
        ("0.self_attn.q_proj", "0.attention.query", 6, 3),
        ("1.self_attn.v_proj", "1.attention.value", 6, 5),
        ("1.self_attn.o_proj", "1.attention.output", 20, 3),
        ("1.mlp.up_proj", "1.ffn.up", 6, 2),
        ("0.mlp.up_proj", "0.ffn.up", 6, 3),
    ):
        module = f"base_model.model.model.layers.{theirs}"
        a = found.tensors[f"layers.{ours}.lora_a"].data
        np.testing.assert_array_equal(a, stored[f"{module}.lora_A.weight"].data)
        assert a.shape[0] == rank
        np.testing.assert_allclose(
            found.tensors[f"layers.{ours}.lora_b"].data,
            stored[f"{module}.lora_B.weight"].data * (alpha / rank**0.5),
            rtol=1e-6,
        )


def test_files_of_torch() -> None:
    found = read_adapter(ADAPTERS / "llama_few", SPEC)
    assert {name.rpartition(".")[0] for name in found.tensors} == {
        "layers.1.attention.query",
        "layers.1.attention.value",
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', expected 'LORA'"),
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported"),
        ({"lora_bias": True}, "lora_bias = True is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = .* is not supported"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices = .* is not supported"),
        ({"layer_replication": [[0, 1]]}, "layer_replication = .* is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base model too"),
        ({"r": 0}, "r: expected a whole number from 1"),
        ({"r": 9}, "lora_A has rank 3, adapter_config.json says 9"),
        ({"lora_alpha": "x"}, "lora_alpha: expected a number"),
        ({"rank_pattern": {"(": 3}}, "'\\(' is no pattern"),
        ({"rank_pattern": {"(a+)+(?=b)": 3}}, "assert is not supported"),
        ({"alpha_pattern": {"((a{99}){99}){99}": 3}}, "more than 1000 states"),
        (
            {"alpha_pattern": {f"(a|b){i}": 3 for i in range(99)}},
            "more than 64 regular expressions",
        ),
        ({"rank_pattern": {f"m{i}": 3 for i in range(5000)}}, "5000 patterns, at most 4096"),
        ({"rank_pattern": 3}, "rank_pattern: expected an object"),
    ],
)
def test_configs_that_are_refused(folder: Path, fields: dict[str, Any], message: str) -> None:
    configure(folder, **fields)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(folder, SPEC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_A": None}, "q_proj has lora_B alone, expected both"),
        ({"lora_A": zeros(3, 31)}, r"lora_A has shape \[3, 31\], expected \[3, 32\]: .* another"),
        ({"lora_B": zeros(33, 3)}, r"lora_B has shape \[33, 3\], expected \[32, 3\].*'tiny/llama'"),
        ({"lora_A": zeros(3)}, r"lora_A has shape \[3\], expected \['rank', 32\]"),
        ({"lora_embedding_A": zeros(3, 3)}, "lora_embedding_A.* is not supported: expected lora_A"),
        ({"lora_magnitude_vector": zeros(3)}, "lora_magnitude_vector.* is not supported"),
        ({"lora_A": Tensor(np.zeros((3, 32), np.int8), "int8")}, "expected a float dtype"),
    ],
)
def test_tensors_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(folder, SPEC)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("model.layers.2.self_attn.q_proj", "the model has 2 layers: the adapter is of another"),
        (
            "lm_head",
            "lm_head is not one of the layers that adapters of this model may",
        ),
        ("model.layers.0.input_layernorm", "input_layernorm is not one of the layers"),
        ("model.layers.0.self_attn.c_attn", "c_attn is not one of the layers"),
    ],
)
def test_modules_that_are_refused(tmp_path: Path, module: str, message: str) -> None:
    names = [f"base_model.model.{module}.lora_{kind}.weight" for kind in "AB"]
    write_safetensors(
        tmp_path / "adapter_model.safetensors",
        dict(zip(names, (zeros(2, 32), zeros(32, 2)), strict=True)),
    )
    config = {"peft_type": "LORA", "r": 2}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        read_adapter(tmp_path, SPEC)


def test_folders_that_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder; expected one that PEFT saved"):
        read_adapter(tmp_path / "nowhere", SPEC)
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json: expected a folder"):
        read_adapter(tmp_path, SPEC)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights; expected adapter_model\.safetensors"):
        read_adapter(folder, SPEC)


def test_numbers_that_are_refused(folder: Path) -> None:
    """The runtime, which reads the numbers, refuses them."""
    import packhorse

    bad = np.zeros((32, 3), np.float32)
    bad[1, 2] = np.nan
    edit(folder, lora_B=Tensor(bad, "float32"))
    options: dict[str, Any] = {"kv_tokens": 64, "threads": 1, "max_adapters": 1}
    with packhorse.Session.load(GOLDEN / "generation" / "llama", **options) as session:
        assert isinstance(session, packhorse.GenerationSession)
        with pytest.raises(ValueError, match=r"'layers\.0\.attention\.query\.lora_b' holds nan"):
            session.add_adapter("bad", folder)
        assert session.adapters == ()
