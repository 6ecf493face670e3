"""Lines of the library in Python's `logging`."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import GOLDEN
from packhorse import Session

GENERATOR = GOLDEN / "generation" / "llama"


def test_a_line_for_what_is_loaded(minilm: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "packhorse"):
        with Session.load(minilm, dtype="float32", threads=1) as session:
            planned = session.memory_plan.total_bytes / 2**20
        with Session.load(GENERATOR, threads=1, kv_tokens=64) as generating:
            cache = generating.memory_plan.total_bytes / 2**20
    encoder, generator = caplog.records
    assert (encoder.name, encoder.levelname) == ("packhorse", "INFO")
    said = f"loaded bert from {minilm}: float32 on cpu, {planned:.1f} MiB planned, in "
    assert encoder.getMessage().startswith(said)
    assert generator.getMessage().startswith(f"loaded llama from {GENERATOR}: ")
    assert f", {cache:.1f} MiB planned, " in generator.getMessage()


def test_it_is_silent_where_nobody_listens(minilm: Path) -> None:
    """Warnings too, which Python would otherwise write to stderr."""
    script = (
        "import logging, sys, packhorse\n"
        "packhorse.Session.load(sys.argv[1], threads=1)\n"
        "logging.getLogger('packhorse.part').warning('a warning')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, minilm], capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == ("", "")


def test_nothing_is_made_for_a_line_that_nobody_reads(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.Logger, "makeRecord", None)
    Session.load(minilm, threads=1).run([[101, 102]])
