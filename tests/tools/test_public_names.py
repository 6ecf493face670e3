"""The public names are those of docs/public_names.txt: none goes or comes unnoticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import public_names


@pytest.fixture(autouse=True)
def command_line() -> None:
    pytest.importorskip("typer")


def test_public_names_are_those_of_the_file() -> None:
    assert not (found := public_names.differences()), found


def test_what_goes_and_what_comes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    names = public_names.public_names()
    monkeypatch.setattr(public_names, "public_names", lambda: names)
    names.remove("packhorse.pack(sequences, attention_mask=, *, type_ids=)")
    names.append("packhorse.pack(batch)")
    names.append("c++ Session::ponder")
    found = public_names.differences()
    assert "gone, or have other parameters:\n  packhorse.pack(sequences, attention_mask=" in found
    assert "are new:\n  c++ Session::ponder\n  packhorse.pack(batch)\n" in found
    assert "docs/api.md" in found


@pytest.mark.parametrize(
    "name",
    [
        "packhorse.TextModel.embed(",
        "packhorse.EncoderSession.run(batch, outputs=, out=, *, stream=",
        "packhorse.Sampling.temperature",
        "packhorse.ops.attention(q, k, v, cu_seqlens_q,",
        "packhorse_weights.convert(src, dst, dtype=",
        "setting models.draft_tokens",
        "command serve --port",
        "command embed MODEL",
        "c++ Session::run_on_device",
        "c++ PackedTokens::cu_seqlens",
        "c++ OutOfMemory",
        "c++ DType::kBFloat16",
    ],
)
def test_names_of_every_kind_are_found(name: str) -> None:
    assert any(line.startswith(name) for line in public_names.frozen_names())
