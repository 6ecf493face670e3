"""tools/check_levels.py, which `make lint` runs: it passes here, and sees what is planted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tools/check_levels.py"


def check(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPT), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_this_repository() -> None:
    assert check(ROOT) == (0, "")


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("runtime/cpu/linear.cc", '#include "model/spec/spec.h"', "runtime/cpu must not include"),
        ("runtime/cpu/linear.cc", '#include "cuda/check.h"', "must not include runtime/cuda/"),
        ("runtime/core/arena.h", '  #include "ops/ops.h"', "runtime/core must not include"),
        ("runtime/model/spec/spec.h", '#include "../cpu/gemm.h"', "runtime/cpu/gemm.h"),
        ("runtime/ops/ops_rowwise.cc", '#include "cpu/cpu_backend.h"', "runtime/cpu/cpu_backend.h"),
        ("runtime/include/packhorse/types.h", '#include "core/arena.h"', "runtime/core/arena.h"),
        (
            "pyruntime/packhorse/_native/operators.h",
            '#include "cpu/cpu_backend.h"',
            "pyruntime must not",
        ),
        (
            "pyruntime/packhorse/_native/device.pxd",
            'cdef extern from "cuda/check.h" namespace "x":',
            "runtime/cuda/check.h",
        ),
        ("runtime/session/new.cc", '#include "cuda/check.h"', "runtime/session must not"),
        ("runtime/model/heads/new.cc", '#include "cpu/gemm.h"', "runtime/model must not"),
    ],
)
def test_planted(tmp_path: Path, file: str, line: str, message: str) -> None:
    for folder in ("runtime", "pyruntime"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so*", "__pycache__")
        )
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text().splitlines() if path.exists() else []
    path.write_text("\n".join([*before, line, ""]))
    code, said = check(tmp_path)
    assert code == 1
    assert said.startswith(f"{file}:{len(before) + 1}: ")
    assert message in said
    assert len(said.splitlines()) == 1
