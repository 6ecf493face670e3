"""What runs on a CUDA device, compared with PyTorch there.

Without a device, or without PyTorch for it, test_device.py is all that is collected, and skipped.
`pytest tests/gpu` with PACKHORSE_GPU_RECEIPT=1 leaves a receipt: see tools/gpu_receipt.py.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections import Counter
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
sys.path += [str(ROOT / "tests" / "python"), str(ROOT / "tools")]

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

_outcomes: Counter[str] = Counter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.outcome] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not _outcomes["passed"] or os.environ.get("PACKHORSE_GPU_RECEIPT") != "1":
        return
    missing = set(HERE.glob("test_*.py")) - {item.path for item in session.items}
    if missing:
        print("\nno receipt, since these were not run:", *sorted(path.name for path in missing))
        return
    import gpu_receipt

    device, cuda = torch.cuda.get_device_name(0), str(torch.version.cuda)
    print(f"\nreceipt: {gpu_receipt.write(device, cuda, _outcomes)}")


@pytest.fixture(scope="session", params=["float16", "bfloat16"])
def precision(request: pytest.FixtureRequest) -> Precision:
    return PRECISIONS[request.param]


@pytest.fixture(scope="module", params=["sm90", "portable"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels of sessions that are loaded, and of operators that are called, meanwhile."""
    if request.param == "sm90" and torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs compute capability 9.0")

    def make(device: str, dtype: str, threads: int | None) -> Operators:
        return Operators(device, dtype, threads or 0)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("PACKHORSE_ATTENTION", "PACKHORSE_GEMM"):
            patch.setenv(name, request.param)
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
