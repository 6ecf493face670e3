"""Measurements of cpu_profile, and that nothing is measured outside of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import packhorse
import pytest

pytestmark = pytest.mark.skipif(
    "cpu" not in packhorse.available_devices(), reason="for the CPU backend"
)

PARTS = {"product", "attention", "norm", "quantize", "other"}
BATCH = [list(range(1, 30)), list(range(1, 50))] * 20


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_parts_of_a_run(tiny_model: Path, dtype: str, threads: int) -> None:
    session = packhorse.Session.load(tiny_model, dtype=dtype, threads=threads)
    session.run(BATCH)
    with packhorse.cpu_profile() as parts:
        session.run(BATCH)
    assert set(parts) == {*PARTS, "wall"}
    for part in PARTS - {"quantize"}:
        assert parts[part] > 0, part
    assert (parts["quantize"] > 0) == (dtype == "int8")
    # Clocks of their own for wall and parts: some microseconds of difference are none.
    assert sum(parts[part] for part in PARTS) <= threads * parts["wall"] + 1e-4


def test_starts_from_zero_and_stops(tiny_model: Path) -> None:
    session = packhorse.Session.load(tiny_model, threads=1)
    with packhorse.cpu_profile():
        session.run(BATCH)
    session.run(BATCH)
    with packhorse.cpu_profile() as idle:
        np.zeros(1)
    assert all(idle[part] == 0 for part in PARTS)


def test_an_error_ends_it_too(tiny_model: Path) -> None:
    session = packhorse.Session.load(tiny_model, threads=1)
    with pytest.raises(ValueError, match="nonsense"), packhorse.cpu_profile() as parts:
        session.run([[1]], outputs=["nonsense"])
    assert parts["product"] == 0
