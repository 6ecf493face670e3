"""The API reference: every public name has a docstring, and appears."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import api_reference


def test_everything_public_has_a_docstring() -> None:
    assert api_reference.undocumented() == []


def test_a_missing_docstring_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import packhorse

    monkeypatch.setattr(packhorse.EncoderSession.run, "__doc__", None)
    monkeypatch.setattr(packhorse.pack, "__doc__", " ")
    assert api_reference.undocumented() == ["packhorse.EncoderSession.run", "packhorse.pack"]
    with pytest.raises(ValueError, match=r"no docstring: packhorse.EncoderSession.run, packhorse"):
        api_reference.write(Path("never-written"))


def test_every_public_name_appears(tmp_path: Path) -> None:
    pytest.importorskip("pdoc")
    # A process of its own: annotations are changed for the pages.
    subprocess.run([sys.executable, api_reference.__file__, tmp_path], check=True)
    assert (tmp_path / "index.html").is_file()
    for name in api_reference.MODULES:
        page = (tmp_path / f"{name.replace('.', '/')}.html").read_text(encoding="utf-8")
        for public in api_reference.public_names(importlib.import_module(name)):
            assert f'<section id="{public}">' in page, f"{name}.{public}"
    page = (tmp_path / "packhorse.html").read_text(encoding="utf-8")
    for method in ("Session.load", "EncoderSession.run", "TextModel.load", "TextModel.embed"):
        assert f'id="{method}"' in page
