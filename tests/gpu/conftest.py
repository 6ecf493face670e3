"""Tests that need a CUDA device; they compare with PyTorch on the same device.

Without a device, or without PyTorch for it, only test_device.py is collected, and in it only what
needs no device runs. tools/gpu_receipt.py runs all of these tests and leaves a receipt.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packhorse
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tests" / "python" / "support"))

CAN_RUN = "cuda:0" in packhorse.available_devices() and all(
    importlib.util.find_spec(name) for name in ("torch", "transformers")
)
collect_ignore_glob = [] if CAN_RUN else ["test_gpu_*.py"]

if CAN_RUN:
    # They are imported here, with warnings ignored, because pyproject.toml turns warnings into
    # errors.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers  # noqa: F401

    from gpu_support import PRECISIONS, Precision, using_kernels


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", params=["float16", "bfloat16"])
def precision(request: pytest.FixtureRequest) -> Precision:
    return PRECISIONS[request.param]


@pytest.fixture(scope="module", params=["sm90", "portable"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Sessions that are loaded and operators that are called in a test use these kernels."""
    if request.param == "sm90" and torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs compute capability 9.0")

    with using_kernels(request.param):
        yield request.param


@pytest.fixture
def random() -> Any:
    """A torch.Generator on the device."""
    return torch.Generator("cuda").manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Memory that is allocated next holds NaN, so an element that no kernel writes is noticed."""
    if CAN_RUN:
        torch.full((64 << 20,), 0xFF, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
