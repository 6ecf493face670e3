"""tools/check_openings.py, which `make lint` runs: it passes here, and sees what is planted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools/check_openings.py"


def check(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPT), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_this_repository() -> None:
    assert check(ROOT) == (0, "")


@pytest.mark.parametrize(
    ("file", "text", "number"),
    [
        ("runtime/new.h", "#pragma once\n// Of pages.\n", 2),
        ("runtime/new.cu", "int begin = 0;  // of the sequence\n", 1),
        ("pyruntime/new.py", 'def f():\n    """Whether."""\n', 2),
        ("tools/new.py", "# Likewise.\nx = 1\n", 1),
    ],
)
def test_planted(tmp_path: Path, file: str, text: str, number: int) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    line = text.splitlines()[number - 1].strip()
    assert check(tmp_path) == (1, f"{file}:{number}: {line}\n")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "runtime/new.h",
            "// Pages in use, and\n// of them, those shared.\nint x;  // without drafts\n",
        ),
        ("pyruntime/new.py", 'def f():\n    """True if a page is free."""\n'),
    ],
)
def test_good_files(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert check(tmp_path) == (0, "")
