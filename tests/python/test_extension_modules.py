"""What the extension modules take and which interpreters load them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse._ops import Operators

X = np.ones((2, 8), np.float32)


def test_modules_serve_every_version() -> None:
    folder = Path(packhorse.__file__).parent
    names = sorted(path.name for path in folder.glob("_*.so"))
    assert names == ["_device.abi3.so", "_generation.abi3.so", "_ops.abi3.so", "_session.abi3.so"]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (X.astype(np.float64), "expected a C-contiguous array of f4, found one of f8"),
        (X.astype(np.int32), "expected a C-contiguous array of f4, found one of i4"),
        (X.T, "expected a C-contiguous array of f4, found one of f4 that is not contiguous"),
        (X.astype(">f4"), "found one of f4 that is not contiguous and in native byte order"),
        ([[1.0]], "expected a NumPy array of f4, found <class 'list'>"),
        (None, "expected a NumPy array of f4, found <class 'NoneType'>"),
    ],
)
def test_array_of_another_kind(array: Any, message: str) -> None:
    operators = Operators("cpu", "float32", 1)
    with pytest.raises(TypeError, match=message):
        operators.gemm(None, array, X, None, "none", None, None)
    found = operators.gemm(None, X, X, None, "none", None, None)
    np.testing.assert_array_equal(found, np.full((2, 2), 8, np.float32))


def test_free_threaded_build_is_refused() -> None:
    program = "import sys; sys.abiflags = 't'; import packhorse"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "ImportError: packhorse does not support free-threaded builds" in result.stderr
