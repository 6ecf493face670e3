"""Arguments of the extension modules, and interpreters that load them."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
from packhorse._native.ops import Operators

X = np.ones((2, 8), np.float32)


def test_modules_serve_every_version() -> None:
    folder = Path(packhorse.__file__).parent / "_native"
    names = sorted(path.name for path in folder.glob("*.so"))
    modules = ("audio", "device", "generation", "image", "ops", "session")
    assert names == [f"{module}.abi3.so" for module in modules]


def dynamic_entries(path: Path) -> dict[int, int]:
    """Tags and values of the dynamic section of an ELF file of 64 bits."""
    data = path.read_bytes()
    assert data[:5] == b"\x7fELF\x02"
    start, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    found: dict[int, int] = {}
    for at in range(start, start + size * count, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == 0x6474E552:  # PT_GNU_RELRO
            found[kind] = length
        if kind == 2:  # PT_DYNAMIC
            found |= dict(struct.iter_unpack("<QQ", data[offset : offset + length]))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")
def test_native_code_is_hardened() -> None:
    """Tables of addresses are read-only once a library is loaded, and functions with arrays on the
    stack check it."""
    folder = Path(packhorse.__file__).parent
    for path in [*folder.glob("_native/*.so"), folder / "lib" / "libpackhorse.so"]:
        entries = dynamic_entries(path)
        assert 0x6474E552 in entries, path  # PT_GNU_RELRO
        assert entries[0x6FFFFFFB] & 1, path  # DT_FLAGS_1: DF_1_NOW
        assert b"__stack_chk_fail" in path.read_bytes(), path
    assert b"_chk\0" in (folder / "lib" / "libpackhorse.so").read_bytes()  # from FORTIFY


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
