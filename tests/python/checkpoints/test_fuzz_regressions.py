"""Inputs that fuzzing found something with, or that resemble those: read, or refused with
CheckpointError."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fuzz"))
import readers_fuzz
from seeds import SEEDS, write_seeds

FUZZ = Path(readers_fuzz.__file__).parent
INPUTS = sorted(
    path for path in (FUZZ / "regressions").glob("*/*") if path.parent.name in readers_fuzz.READERS
)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_found_by_fuzzing(path: Path) -> None:
    readers_fuzz.read_one(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("reader", ["pickle", "safetensors", "torch"])
def test_what_fuzzing_starts_from_is_read(reader: str, tmp_path: Path) -> None:
    assert set(readers_fuzz.READERS) < set(SEEDS)
    write_seeds(reader, tmp_path)
    reached, lines = readers_fuzz.lines_reached(
        reader, [path.read_bytes() for path in tmp_path.iterdir()]
    )
    assert reached > lines / 3  # the others say why something is refused
