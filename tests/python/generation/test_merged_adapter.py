"""Adapters in the folder of a model, beside what PEFT makes of the same two
(tests/golden/make_adapter_golden.py), and folders that hold an adapter alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import packhorse
import pytest
from packhorse import Sampling
from packhorse_weights import CheckpointError, convert, resolve_model
from packhorse_weights.hub.files import missing_part
from test_adapters import ADAPTERS, base_of


def together(adapter: Path, folder: Path) -> Path:
    shutil.copytree(base_of(adapter), folder)
    for file in adapter.glob("adapter_*"):
        shutil.copy(file, folder)
    return folder


def continued(folder: Path, adapter: Path) -> None:
    """Checks that what the model says is what PEFT's does."""
    with packhorse.Session.load(folder, dtype="float32", kv_tokens=512, threads=1) as session:
        assert isinstance(session, packhorse.GenerationSession)
        with np.load(adapter / "golden.npz") as golden:
            prompts = np.split(golden["prompts"], np.cumsum(golden["prompt_lengths"])[:-1])
            found = session.generate(prompts, Sampling(max_new_tokens=40, ignore_eos=True))
            assert [one.ids for one in found] == golden["continuations"].tolist()


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: one.name)
def test_same_as_peft(adapter: Path, tmp_path: Path) -> None:
    continued(together(adapter, tmp_path / "m"), adapter)


def test_converted(tmp_path: Path) -> None:
    """The adapter is part of the weights that are written, and is not added twice."""
    folder = together(ADAPTERS[0], tmp_path / "m")
    continued(convert(folder, tmp_path / "converted"), ADAPTERS[0])


def test_refused(tmp_path: Path) -> None:
    adapter = next(one for one in ADAPTERS if one.name == "llama")
    folder = together(adapter, tmp_path / "m")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(CheckpointError, match="adapter_config.json: use_dora = True"):
        resolve_model(folder)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights; expected adapter_model.safetensors"):
        resolve_model(folder)


def test_adapters_alone(tmp_path: Path) -> None:
    adapter = Path(shutil.copytree(ADAPTERS[0], tmp_path / "adapter"))
    config = json.loads((adapter / "adapter_config.json").read_text())
    named = config | {"base_model_name_or_path": "org/base"}
    (adapter / "adapter_config.json").write_text(json.dumps(named))
    message = "adapter: an adapter of the model 'org/base', not a model. .* add_adapter"
    with pytest.raises(CheckpointError, match=message.replace(" add_adapter", ".*add_adapter")):
        resolve_model(adapter)
    assert missing_part(adapter) is None  # in a cache, it is not looked for again
    # Some tools also copy the config of the model.
    shutil.copy(base_of(ADAPTERS[0]) / "config.json", adapter)
    with pytest.raises(CheckpointError, match="an adapter of the model 'org/base'"):
        resolve_model(adapter)
