"""The C++ example, built against the installed package through find_package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import packhorse
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp"


def run(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_example_builds_and_embeds(tmp_path: Path, tiny_model: Path) -> None:
    prefix = Path(packhorse.__file__).parent
    run("cmake", "-S", EXAMPLE, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    lines = run(tmp_path / "build" / "embed", tiny_model).splitlines()
    assert lines[0].startswith("memory: ")
    for line, (tokens, norm) in zip(lines[1:], [(5, 1.0), (0, 0.0), (2, 1.0)], strict=True):
        assert f" {tokens} tokens" in line
        assert float(line.rsplit(" ", 1)[1]) == pytest.approx(norm, abs=1e-5)
