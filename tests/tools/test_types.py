"""Findings of mypy in a user's file: nothing in typed/good.py, every mistake of typed/bad.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import packhorse
import packhorse_weights
import pytest
from snippets import all_snippets

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


# Names that snippets of the documents are given, in the words of a type checker.
GIVEN = """\
# mypy: allow-redefinition, disable-error-code="import-not-found,import-untyped,no-redef"
from typing import Any; import numpy as np; import numpy; import packhorse
"""
TYPES = {
    **dict.fromkeys(("texts", "documents", "typical_texts"), "list[str]"),
    **dict.fromkeys(("model", "lm"), "packhorse.TextModel"),
    "session": "packhorse.EncoderSession",
    "session_that_generates": "packhorse.GenerationSession",
    **dict.fromkeys(("batch", "ids"), "Any"),
}


def write_snippets(folder: Path) -> list[str]:
    """A module for each page, which has its Python snippets in the lines where they stand there."""
    modules: dict[str, list[str]] = {}
    for snippet in all_snippets():
        if snippet.language != "python":
            continue
        page = modules.setdefault(snippet.page, [])
        page += [""] * (snippet.line - 1 - len(page))
        page[snippet.line - 2] = "; ".join(
            f"{name}: {TYPES[name]}" for name in snippet.given if name in TYPES
        )
        page += snippet.text.splitlines()
    paths = []
    for page_name, lines in modules.items():
        path = folder / f"page_{re.sub('[^a-z]', '_', page_name.lower())}.py"
        # The first lines of a page hold no snippet.
        path.write_text(GIVEN + "\n".join(lines[2:]) + "\n")
        paths.append(str(path))
    return paths


def test_mypy_finds_every_mistake(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """The snippets of the documents have no mistake, as a user would copy them."""
    pytest.importorskip("mypy")
    # Installed packages are found by themselves, sources are not.
    places = {Path(module.__file__).parents[1] for module in (packhorse, packhorse_weights)}
    sources = [str(place) for place in places if place.name != "site-packages"]
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-pretty"),
            *("--cache-dir", str(pytestconfig.rootpath / ".mypy_cache" / "typed")),
            *(str(FILES / name) for name in ("good.py", "bad.py")),
            *write_snippets(tmp_path),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"MYPYPATH": os.pathsep.join(sources)},
    )
    found = {
        (name, int(line), code)
        for name, line, code in FOUND.findall(finished.stdout)
        if name in ("good.py", "bad.py") or name.startswith("page_")
    }
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert found == expected_mistakes(), finished.stdout
