"""The C++ examples, built against the installed package through find_package."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import packhorse
import pytest
from precisions import ModelMaker

EXAMPLE = Path(__file__).parents[3] / "examples" / "cpp"


def run(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    build = tmp_path_factory.mktemp("examples")
    prefix = Path(packhorse.__file__).parent
    run("cmake", "-S", EXAMPLE, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    return build


def test_example_embeds(examples: Path, tiny_model: Path) -> None:
    lines = run(examples / "embed", tiny_model).splitlines()
    assert lines[0].startswith("memory: ")
    for line, (tokens, norm) in zip(lines[1:], [(5, 1.0), (0, 0.0), (2, 1.0)], strict=True):
        assert f" {tokens} tokens" in line
        assert float(line.rsplit(" ", 1)[1]) == pytest.approx(norm, abs=1e-5)


def test_example_generates(examples: Path, make_model: ModelMaker) -> None:
    folder = make_model(
        type_vocab_size=0, attention={"mask": "causal"}, heads={"lm": {"tied": True}}
    )
    memory, first, second = run(examples / "generate", folder).splitlines()
    assert re.fullmatch(r"memory: \d+ bytes, of them \d+ for 1024 tokens of cache", memory)
    assert re.fullmatch(r"first:( \d+){8} \(length\)", first)
    assert re.fullmatch(r"second:( \d+){8}", second)
    assert run(examples / "generate", folder).splitlines()[1:] == [first, second]
