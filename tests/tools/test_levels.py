"""tools/check_levels.py, which `make lint` runs: it passes here, and sees what is planted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools/check_levels.py"


def check(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPT), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_this_repository() -> None:
    assert check(ROOT) == (0, "")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, into which a test plants an include and takes it out again."""
    root = tmp_path_factory.mktemp("levels")
    for folder in ("runtime", "pyruntime"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns("*.so*", "__pycache__")
        )
    return root


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        (
            "runtime/cpu/gemm/linear.cc",
            '#include "model/spec/spec.h"',
            "runtime/cpu must not include",
        ),
        (
            "runtime/cpu/gemm/linear.cc",
            '#include "cuda/device/check.h"',
            "must not include runtime/cuda/",
        ),
        ("runtime/core/arena.h", '  #include "ops/ops.h"', "runtime/core must not include"),
        ("runtime/model/spec/spec.h", '#include "../cpu/gemm/gemm.h"', "runtime/cpu/gemm/gemm.h"),
        ("runtime/ops/ops_rowwise.cc", '#include "cpu/cpu_backend.h"', "runtime/cpu/cpu_backend.h"),
        ("runtime/include/packhorse/types.h", '#include "core/arena.h"', "runtime/core/arena.h"),
        (
            "pyruntime/packhorse/_native/operators.h",
            '#include "cpu/cpu_backend.h"',
            "pyruntime must not",
        ),
        (
            "pyruntime/packhorse/_native/device.pxd",
            'cdef extern from "cuda/device/check.h" namespace "x":',
            "runtime/cuda/device/check.h",
        ),
        ("runtime/session/new.cc", '#include "cuda/device/check.h"', "runtime/session must not"),
        ("runtime/model/heads/new.cc", '#include "cpu/gemm/gemm.h"', "runtime/model must not"),
        # Families of kernels, and what they share.
        (
            "runtime/cuda/gemm/new.cuh",
            '#include "cuda/attention/attention.h"',
            "runtime/cuda/gemm must not include runtime/cuda/attention/attention.h",
        ),
        (
            "runtime/cuda/gemm/sm90/new.cuh",
            '#include "cuda/sampling/row_blocks.cuh"',
            "runtime/cuda/gemm must not include runtime/cuda/sampling/row_blocks.cuh",
        ),
        (
            "runtime/cuda/common/launch.cuh",
            '#include "cuda/gemm/gemm.h"',
            "runtime/cuda/common must not include runtime/cuda/gemm/gemm.h",
        ),
        (
            "runtime/cuda/device/context.cc",
            '#include "cuda/common/launch.cuh"',
            "runtime/cuda/device must not include runtime/cuda/common/launch.cuh",
        ),
        (
            "runtime/cuda/attention/new.cu",
            '#include "cuda/arg_checks.h"',
            "runtime/cuda/attention must not include runtime/cuda/arg_checks.h",
        ),
        (
            "runtime/cpu/rowwise/rowwise.cc",
            '#include "cpu/gemm/gemm.h"',
            "runtime/cpu/rowwise must not include runtime/cpu/gemm/gemm.h",
        ),
        (
            "runtime/cpu/gemm/linear.cc",
            '#include "cpu/moe/moe.h"',
            "runtime/cpu/gemm must not include runtime/cpu/moe/moe.h",
        ),
        (
            "runtime/cpu/isa/simd.inc",
            '#include "cpu/common/rows.h"',
            "runtime/cpu/isa must not include runtime/cpu/common/rows.h",
        ),
        # Files that include themselves, by way of another and at once.
        (
            "runtime/cuda/device/check.h",
            '#include "cuda/device/stream.h"',
            "include cycle runtime/cuda/device/stream.h -> runtime/cuda/device/check.h -> "
            "runtime/cuda/device/stream.h",
        ),
        (
            "runtime/core/arena.h",
            '#include "core/arena.h"',
            "include cycle runtime/core/arena.h -> runtime/core/arena.h",
        ),
    ],
)
def test_planted(tree: Path, file: str, line: str, message: str) -> None:
    path = tree / file
    there = path.read_bytes() if path.exists() else None
    before = there.decode().splitlines() if there is not None else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*before, line, ""]))
    try:
        code, said = check(tree)
    finally:
        path.unlink() if there is None else path.write_bytes(there)
    assert code == 1
    assert said.startswith(f"{file}:{len(before) + 1}: ")
    assert message in said
    assert len(said.splitlines()) == 1


_SERVE = [f"pyruntime/packhorse/serve{room}" for room in ("", "/http", "/models")]


def write_modules(root: Path, sources: dict[str, str]) -> None:
    for name, source in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("pyruntime/packhorse/ops/new.py", "from packhorse.text.model import x", "packhorse.ops"),
        ("pyruntime/packhorse/_native/new.py", "import packhorse.session", "packhorse._native"),
        ("pyruntime/packhorse/text/new.py", "from packhorse import serve", "packhorse.text"),
        ("pyruntime/packhorse/text/new.py", "def f():\n    import packhorse.cli", "packhorse.text"),
        ("pyruntime/packhorse/serve/http/new.py", "import packhorse.text", "packhorse.serve.http"),
        ("pyruntime/packhorse/serve/http/new.py", "import packhorse.serve", "packhorse.serve.http"),
        (
            "pyruntime/packhorse/serve/models/new.py",
            "from packhorse.serve import http",
            "packhorse.serve.models",
        ),
        (
            "pyruntime/packhorse/serve/observability/new.py",
            "from packhorse.serve.models import queue",
            "packhorse.serve.observability",
        ),
        (
            "weights_tools/packhorse_weights/new.py",
            "from packhorse.names import Dtype",
            "packhorse_weights.top",
        ),
        (
            "weights_tools/packhorse_weights/formats/gguf/new.py",
            "from packhorse_weights import hub",
            "packhorse_weights.formats",
        ),
    ],
)
def test_planted_import(tmp_path: Path, file: str, line: str, message: str) -> None:
    rooms = (*_SERVE, "weights_tools/packhorse_weights/hub")
    write_modules(tmp_path, {f"{room}/__init__.py": "" for room in rooms} | {file: f"{line}\n"})
    code, said = check(tmp_path)
    assert code == 1
    assert said.startswith(f"{file}:{len(line.splitlines())}: {message} must not import packhorse")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("how", ["{}", "def f():\n    {}", "if TYPE_CHECKING:\n    {}"])
def test_planted_circle(tmp_path: Path, how: str) -> None:
    top = "pyruntime/packhorse"
    sources = {
        f"{top}/a.py": "from packhorse.b import x",
        f"{top}/b.py": "from packhorse import c",
        f"{top}/c.py": how.format("import packhorse.a"),
        f"{top}/d.py": "import packhorse.a",
    }
    write_modules(tmp_path, sources)
    code, said = check(tmp_path)
    if "TYPE_CHECKING" in how:
        assert (code, said) == (0, "")
    else:
        names = "packhorse.a, packhorse.b, packhorse.c"
        assert (code, said) == (1, f"{top}/a.py:1: imports in a circle: {names}\n")
