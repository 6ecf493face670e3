"""Every Python and shell snippet of README and docs, run as it is written: see snippets.py."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import packhorse
import pytest
from command_line import Cli
from snippet_room import GIVEN, make_room
from snippets import ROOT, Snippet, all_snippets, check_names, commands, find_snippets, parse

pytest.importorskip("tokenizers")

SNIPPETS = all_snippets()


def run_python(snippet: Snippet, names: dict[str, Any]) -> None:
    check_names(snippet)
    for name in snippet.given:
        names[name] = GIVEN[name]()
    exec(compile(parse(snippet), ROOT / snippet.page, "exec"), names)


def run_shell(snippet: Snippet, cli: Cli) -> None:
    """`packhorse` in this process; what `make`, `python` and `pip install` name must be there."""
    for words in commands(snippet):
        if words[0] == "packhorse":
            pytest.importorskip("typer")
            outcome = cli(*words[1:])
            assert outcome.status == 0, f"{snippet.name}: {' '.join(words)}\n{outcome.err}"
        elif words[0] == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), f"{snippet.name}: {words}"
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), f"{snippet.name}: no file {words[1]}"
        elif words[:2] == ["pip", "install"]:
            project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            for extras in re.findall(r"\[([a-z,]+)\]", " ".join(words)):
                for extra in extras.split(","):
                    assert f"\n{extra} = [" in project, f"{snippet.name}: no extra {extra!r}"


def missing(snippet: Snippet) -> str | None:
    """Reason for which a snippet cannot run here."""
    for name in snippet.needs:
        if name == "cuda":
            there = any(device.startswith("cuda") for device in packhorse.available_devices())
        else:
            there = importlib.util.find_spec(name) is not None
        if not there:
            return f"needs {name}"
    return snippet.not_run


class Pages:
    """The names that each page has made so far. A snippet is run after those before it."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self._names: dict[str, dict[str, Any]] = {}
        self._done: set[str] = set()

    def run(self, snippet: Snippet) -> None:
        names = self._names.setdefault(snippet.page, {"__name__": "snippet"})
        for one in SNIPPETS:
            if one.page != snippet.page or one.line > snippet.line or one.name in self._done:
                continue
            self._done.add(one.name)
            if one.language == "python" and missing(one) is None:
                run_python(one, names)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Pages:
    return Pages(make_room(tmp_path_factory.mktemp("snippets"), minilm))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: one.name)
def test_snippet(snippet: Snippet, pages: Pages, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pages.room)
    monkeypatch.setenv("HF_HUB_CACHE", os.fspath(pages.room.parent / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if snippet.language == "python":
        check_names(snippet)
    reason = missing(snippet)
    if reason is not None:
        pytest.skip(f"{snippet.name}: {reason}")
    if snippet.language == "python":
        pages.run(snippet)
    else:
        run_shell(snippet, cli)


# --- the runner itself


def python(text: str) -> Snippet:
    return Snippet("page.md", 7, "python", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("packhorse.Sesion.load('m')\n", "page.md:7.*Sesion"),
        ("x = 1\npackhorse.Session.load('m', dtyp='int8')\n", "page.md:8: no 'dtyp'"),
        ("session.runs(batch)\n", "page.md:7.*runs"),
        ("model.embed(texts, truncate_dims=3)\n", "no 'truncate_dims'"),
    ],
)
def test_wrong_names_are_found(text: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_names(python(text))


def test_snippets_are_found() -> None:
    text = (
        "# page\n<!-- snippet: given texts, model -->\n```python\na\nb\n```\n"
        "<!-- snippet: needs cuda, torch -->\n\n```python\nc\n```\n```json\n{}\n```\n"
        "<!-- snippet: not run: it deletes -->\n```sh\nrm x  # y\npackhorse a \\\n  'b c'\n```\n"
    )
    first, second, third = find_snippets(text, "page.md")
    assert (first.name, first.text, first.given) == ("page.md:4", "a\nb\n", ["texts", "model"])
    assert (second.line, second.needs) == (10, ["cuda", "torch"])
    assert (third.language, third.not_run) == ("sh", "it deletes")
    assert commands(third) == [["rm", "x"], ["packhorse", "a", "b c"]]
    for wrong in ("<!-- snippet: give x -->\n```sh\n```\n", "<!-- snippet: given x -->\ntext\n"):
        with pytest.raises(ValueError, match="page.md:"):
            find_snippets(wrong, "page.md")


def test_a_failure_names_the_page_and_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        run_python(python("x = 1\nx / 0\n"), {})
    assert failure.traceback[-1].lineno == 7  # counted from 0
    assert str(failure.traceback[-1].path).endswith("page.md")
