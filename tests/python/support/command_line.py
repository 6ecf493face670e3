"""Entry point of the command line in this process, and its status and output, for tests."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Cli = Callable[..., Outcome]


def entry_point(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    from packhorse.cli import main

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["packhorse", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        code = stop.value.code
        return Outcome(code if isinstance(code, int) else 0, out, err)

    return run


def failed(outcome: Outcome, *parts: str, status: int = 1) -> bool:
    """One line on stderr that holds all parts, nothing on stdout."""
    assert outcome.status == status
    assert outcome.out == ""
    assert outcome.err.startswith("packhorse: ")
    assert outcome.err.count("\n") == 1
    for part in parts:
        assert part in outcome.err
    return True
