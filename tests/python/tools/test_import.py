"""Modules that `import packhorse` loads."""

from __future__ import annotations

import subprocess
import sys

import packhorse
import pytest

LISTING = """
import sys
import packhorse
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_import_brings_numpy_and_nothing_heavier() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", LISTING], capture_output=True, text=True, check=True
    )
    modules = set(finished.stdout.split())
    assert {"packhorse", "numpy"} <= modules
    allowed = set(sys.stdlib_module_names) | {"packhorse", "packhorse_weights", "numpy"}
    # Modules that Python loads before any code of ours: for .pth files of the environment, and
    # others.
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    allowed |= {name.partition(".")[0] for name in bare.stdout.split()}
    cython = {name for name in modules if name.startswith(("_cython", "cython_runtime"))}
    assert modules - allowed - cython == set()


def test_a_session_needs_no_framework(tiny_model: object, device: str) -> None:
    script = (
        "import sys, packhorse\n"
        f"packhorse.Session.load({str(tiny_model)!r}, {device!r}, max_tokens=8).run([[1, 2]])\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "transformers", "tokenizers", "safetensors", "typer", "rich", "scipy"}
    assert heavy.isdisjoint(finished.stdout.split())


def test_operators_are_imported_on_use() -> None:
    script = (
        "import sys, packhorse\n"
        "assert 'ops' in dir(packhorse) and 'packhorse.ops' not in sys.modules\n"
        "print(packhorse.ops.gemm([[1, 2]], [[3, 4]]).tolist())"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "[[11.0]]\n"
    with pytest.raises(AttributeError, match="'packhorse' has no attribute 'opps'"):
        _ = packhorse.opps


def test_public_names() -> None:
    assert set(packhorse.__all__) <= set(dir(packhorse))
    for name in ("Session", "PackedTokens", "pack", "available_devices"):
        assert name in packhorse.__all__
