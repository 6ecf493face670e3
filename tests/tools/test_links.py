"""Links from page to page, and files that pages for developers name: they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "benchmarks" / "README.md",
    ROOT / "examples" / "README.md",
    ROOT / "tests" / "emulated" / "README.md",
]

# Pages that say where to look, and the folders from which they name files.
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "developer" / "architecture.md"]
ROOMS = [
    ROOT / name
    for name in (
        ".",
        "pyruntime/packhorse",
        "pyruntime/packhorse/serve",
        "weights_tools",
        "weights_tools/packhorse_weights",
        "runtime",
        "runtime/cpu",
        "runtime/cuda",
        "runtime/cuda/gemm",
        "runtime/generation",
        "runtime/model",
        "tests/python",
    )
]
SUFFIXES = "py|pyx|pyi|pxd|h|cc|cu|cuh|inc|md|json|txt"


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    assert broken(page) == []


def missing_files(text: str) -> list[str]:
    """Files and folders in backticks, named by a path, that no room has."""
    named = re.findall(rf"`([\w.-]+/(?:[\w.-]+/)*(?:[\w-]+\.(?:{SUFFIXES}))?)`", text)
    return [
        name
        for name in named
        if not re.search("NAME|FAMILY|LEVEL", name)
        and not any((room / name).exists() for room in ROOMS)
    ]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_files_that_guides_name(page: Path) -> None:
    assert missing_files(page.read_text(encoding="utf-8")) == []


def test_missing_files_are_found() -> None:
    text = "`core/arena.h` `core/gone.h` `tests/gpu/` `tests/gone/` `Session.run` `heads/NAME.cc`"
    assert missing_files(text) == ["core/gone.h", "tests/gone/"]


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `thing`: two\n```sh\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md#one-thing-two) [b](#here) [c](https://example.org/x)\n"
        "[d](gone.md) [e](other.md#no-heading) [f](#there)\n"
    )
    assert broken(page) == ["gone.md", "other.md#no-heading", "#there"]
