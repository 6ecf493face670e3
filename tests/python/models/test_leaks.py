"""Loads leave no file descriptors and no threads behind, whether they succeed or not.
`nox -s leaks` does it 10,000 times (PACKHORSE_LOADS), and looks at the memory, too."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from packhorse import Session

FORMATS = Path(__file__).parents[2] / "formats"
LOADS = int(os.environ.get("PACKHORSE_LOADS", "40"))


def count(kind: str) -> int:
    gc.collect()
    return len(list(Path(f"/proc/self/{kind}").iterdir()))


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def encode(folder: Path) -> None:
    with Session.load(folder / "1-encoder", max_tokens=16, threads=2) as session:
        session.run([[1, 2, 3]])


def generate(folder: Path) -> None:
    with Session.load(folder / "1-decoder", kv_tokens=64, max_tokens=16, threads=2) as session:
        session.generate([[1, 2, 3]])


def fail(folder: Path) -> None:
    for name in ("half", "wrong"):
        with pytest.raises(ValueError, match="model.safetensors|is missing|format"):
            Session.load(folder / name, threads=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in FORMATS.iterdir():
        shutil.copytree(path, tmp_path / path.name)
    for name in ("half", "wrong"):
        shutil.copytree(FORMATS / "1-encoder", tmp_path / name)
    whole = (tmp_path / "half" / "model.safetensors").read_bytes()
    (tmp_path / "half" / "model.safetensors").write_bytes(whole[:-100])
    text = (tmp_path / "wrong" / "packhorse.json").read_text().replace('"format": 1', '"format": 9')
    (tmp_path / "wrong" / "packhorse.json").write_text(text)
    return tmp_path


@pytest.mark.parametrize("load", [encode, generate, fail])
def test_loads_leave_nothing_behind(folder: Path, load: Callable[[Path], None]) -> None:
    for _ in range(10):
        load(folder)
    before = count("fd"), count("task")
    pages = resident_pages()
    for _ in range(LOADS):
        load(folder)
    assert (count("fd"), count("task")) == before
    grown = resident_pages() - pages
    print(f"{load.__name__}: {LOADS} loads, {before} descriptors and threads, {grown} pages more")
    assert grown < 1000  # 4 MB: malloc's own needs, whatever the number of loads
