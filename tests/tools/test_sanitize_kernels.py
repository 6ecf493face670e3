"""Commands of tools/sanitize_kernels.py, and how it reads their output; without a GPU."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SILENT = "12 passed, 3 deselected in 4.05s\n========= ERROR SUMMARY: 0 errors\n"
HAZARDS = (
    "2 passed in 1.00s\n========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)\n"
)


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location(
        "sanitize_kernels", ROOT / "tools" / "sanitize_kernels.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_sets_are_of_files_that_exist(tool: Any) -> None:
    for tests in tool.SETS.values():
        assert (ROOT / tests.tests).is_file()


def test_verdicts(tool: Any) -> None:
    assert tool.verdict(SILENT, 0) == ("12 passed, 3 deselected", "silent", True)
    assert tool.verdict(SILENT, 1)[2] is False
    tests, said, good = tool.verdict(HAZARDS, tool.FOUND)
    assert (tests, said, good) == ("2 passed", "3 hazards displayed (2 errors, 1 warning)", False)
    assert tool.verdict("", 1) == ("no tests ran", "no summary", False)
    failed = "1 failed, 2 passed in 3s\n========= ERROR SUMMARY: 0 errors\n"
    assert tool.verdict(failed, 1) == ("1 failed, 2 passed", "silent", False)
    none = "5 deselected in 3s\n========= ERROR SUMMARY: 0 errors\n"
    assert tool.verdict(none, 0)[2] is False


def fake(folder: Path, script: str) -> None:
    """A compute-sanitizer of the test's own."""
    program = folder / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_the_table(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake(tmp_path, f'echo "$@"; printf "{SILENT}"')
    options = ["int8", "pages", "--tool", "memcheck", "--tool", "initcheck", "-k", "sums"]
    assert tool.main([*options, "--logs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 4
    assert lines[2].startswith("| int8 | memcheck | 12 passed, 3 deselected | silent | ")
    filtered = (tmp_path / "int8-memcheck.txt").read_text()
    for part in ("--tool memcheck", "kernel_substring=packhorse", "test_gpu_int8.py", "and (sums)"):
        assert part in filtered
    assert "kernel_substring" not in (tmp_path / "pages-initcheck.txt").read_text()
    fake(tmp_path, f'printf "{HAZARDS}"; exit {tool.FOUND}')
    assert tool.main(["int8", "--tool", "racecheck", "--logs", str(tmp_path)]) == 1


def test_limits_and_refusals(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake(tmp_path, "sleep 60")
    assert tool.main(["int8", "--limit", "0.3", "--logs", str(tmp_path)]) == 1
    assert "| int8 | memcheck | cut off | over its limit of 0 s" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        tool.main(["nothing"])
    assert "no set is called 'nothing'; expected some of float8," in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit):
        tool.main([])
    assert "compute-sanitizer is not on PATH" in capsys.readouterr().err
    assert tool.main(["--list"]) == 0
    assert "int8: tests/gpu/test_gpu_int8.py -k '" in capsys.readouterr().out
