"""What mypy finds in a user's file: nothing in typed/good.py, every mistake of typed/bad.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import packhorse
import packhorse_weights
import pytest

FILES = Path(__file__).parent / "typed"
FOUND = re.compile(r"^(?:.*/)?(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)
EXPECTED = re.compile(r"# error: ([\w-]+)$")

Mistakes = set[tuple[str, int, str]]


def expected_mistakes() -> Mistakes:
    return {
        (path.name, number, match[1])
        for path in FILES.iterdir()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := EXPECTED.search(line))
    }


def test_mypy_finds_every_mistake(pytestconfig: pytest.Config) -> None:
    pytest.importorskip("mypy")
    # Installed packages are found by themselves, sources are not.
    places = {Path(module.__file__).parents[1] for module in (packhorse, packhorse_weights)}
    sources = [str(place) for place in places if place.name != "site-packages"]
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-pretty"),
            *("--cache-dir", str(pytestconfig.rootpath / ".mypy_cache" / "typed")),
            *(str(FILES / name) for name in ("good.py", "bad.py")),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"MYPYPATH": os.pathsep.join(sources)},
    )
    found = {
        (name, int(line), code)
        for name, line, code in FOUND.findall(finished.stdout)
        if name in ("good.py", "bad.py")
    }
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert found == expected_mistakes(), finished.stdout
