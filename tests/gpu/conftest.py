"""What runs on a CUDA device, compared with PyTorch there.

Without a device, or without PyTorch for it, test_device.py is all that is collected, and skipped.
tools/gpu_receipt.py runs all of it, and leaves a receipt.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import packhorse
import pytest
from packhorse import operator_call
from packhorse._ops import Operators

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tests" / "python"))

CAN_RUN = "cuda:0" in packhorse.available_devices() and all(
    importlib.util.find_spec(name) for name in ("torch", "transformers")
)
collect_ignore_glob = [] if CAN_RUN else ["test_gpu_*.py"]

if CAN_RUN:
    # Imported here because pyproject.toml turns warnings, theirs too, into errors.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers  # noqa: F401

    from gpu_support import PRECISIONS, Precision


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", params=["float16", "bfloat16"])
def precision(request: pytest.FixtureRequest) -> Precision:
    return PRECISIONS[request.param]


@pytest.fixture(scope="module", params=["sm90", "portable"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels of sessions that are loaded, and of operators that are called, meanwhile."""
    if request.param == "sm90" and torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs compute capability 9.0")

    def make(device: str, dtype: str, threads: int | None, attention: str = "auto") -> Operators:
        return Operators(device, dtype, threads or 0, attention)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACKHORSE_GEMM", request.param)
        # On Hopper "auto" still leaves to the portable kernel what Hopper's does not take.
        patch.setenv("PACKHORSE_ATTENTION", "online" if request.param == "portable" else "auto")
        # Operators read the choice when they are made: those of the other kernels do not serve.
        patch.setattr(operator_call, "shared_operators", lru_cache(make))
        yield request.param


@pytest.fixture
def random() -> Any:
    """torch.Generator on the device."""
    return torch.Generator("cuda").manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """What is allocated next holds NaN: an element that nobody writes shows."""
    if CAN_RUN:
        torch.full((64 << 20,), 0xFF, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
