"""The fenced blocks of README and docs: how they are found, and what can be checked without a run.

A block may follow an HTML comment, which readers of the page do not see:

    <!-- snippet: given texts, session -->   names that the block uses and nothing before it makes
    <!-- snippet: needs cuda, torch -->      run where the device and the packages are there
    <!-- snippet: not run: the reason -->    never run
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import packhorse

ROOT = Path(__file__).parents[3]
LANGUAGES = ("python", "sh")
# Names that the pages give to objects of these classes.
CLASSES = {
    "session": packhorse.EncoderSession,
    "generator": packhorse.GenerationSession,
    "model": packhorse.TextModel,
    "lm": packhorse.TextModel,
    "plan": packhorse.MemoryPlan,
}

_MARK = re.compile(r"<!-- snippet: (given|needs|not run)[ :] *(.*?) *-->")


@dataclass
class Snippet:
    page: str  # path from the root
    line: int  # number of its first line
    language: str
    text: str
    given: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    not_run: str | None = None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Pages for users. Pages for developers are not run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def find_snippets(text: str, page: str) -> list[Snippet]:
    """All blocks of LANGUAGES on a page. Raises ValueError for a comment that is not followed by
    one, or that is not understood."""
    found: list[Snippet] = []
    marks: list[tuple[str, str]] = []
    inside: str | None = None
    block: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if inside is not None:
            if line.strip() == "```":
                if inside in LANGUAGES:
                    first = number - len(block)
                    found.append(_make(page, first, inside, block, marks))
                    marks = []
                inside = None
            else:
                block.append(line)
        elif line.startswith("```"):
            inside, block = line[3:].strip(), []
            if marks and inside not in LANGUAGES:
                raise ValueError(f"{page}:{number}: a snippet comment before a block of {inside}")
        elif "<!-- snippet" in line:
            mark = _MARK.fullmatch(line.strip())
            if mark is None:
                raise ValueError(f"{page}:{number}: not understood: {line}")
            marks.append((mark[1], mark[2]))
        elif marks and line.strip():
            raise ValueError(f"{page}:{number}: expected a block after the snippet comment")
    return found


def _make(
    page: str, line: int, language: str, block: list[str], marks: list[tuple[str, str]]
) -> Snippet:
    snippet = Snippet(page, line, language, "\n".join(block) + "\n")
    for kind, value in marks:
        if kind == "not run":
            snippet.not_run = value
        else:
            getattr(snippet, kind).extend(re.split(r",\s*", value))
    return snippet


def all_snippets() -> list[Snippet]:
    return [
        snippet
        for page in pages()
        for snippet in find_snippets(
            page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        )
    ]


def parse(snippet: Snippet) -> ast.Module:
    """Line numbers are those of the page."""
    padded = "\n" * (snippet.line - 1) + snippet.text
    return ast.parse(padded, filename=snippet.page)


def _attributes(owner: type) -> set[str]:
    """Names that objects of a class have and it has not: annotated ones, and what methods set."""
    names: set[str] = set()
    for one in owner.__mro__[:-1]:
        names |= inspect.get_annotations(one).keys()
        names.update(re.findall(r"\bself\.(\w+)(?:: [^=]+)? = ", inspect.getsource(one)))
    return names


def _resolve(node: ast.expr) -> Any:
    """Resolves an expression such as `packhorse.Session.load`; None where it is not known. Raises
    AttributeError."""
    if isinstance(node, ast.Name):
        return packhorse if node.id == "packhorse" else CLASSES.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = _resolve(node.value)
    if owner is None:
        return None
    if inspect.isclass(owner) and node.attr in _attributes(owner):
        return None  # the attribute of an object, not of its class
    found = getattr(owner, node.attr)
    return found if callable(found) or inspect.ismodule(found) else None


def check_names(snippet: Snippet) -> None:
    """Every attribute of the package and of CLASSES exists, every argument has a name that the
    function takes. Raises AssertionError, SyntaxError."""
    for node in ast.walk(parse(snippet)):
        where = f"{snippet.page}:{getattr(node, 'lineno', snippet.line)}"
        try:
            if isinstance(node, ast.Attribute):
                _resolve(node)
            function = _resolve(node.func) if isinstance(node, ast.Call) else None
        except AttributeError as error:
            raise AssertionError(f"{where}: {error}") from None
        if function is None:
            continue
        taken = inspect.signature(function).parameters.values()
        if any(one.kind is one.VAR_KEYWORD for one in taken):
            continue
        names = {one.name for one in taken}
        for keyword in node.keywords:
            assert keyword.arg is None or keyword.arg in names, f"{where}: no {keyword.arg!r}"


def commands(snippet: Snippet) -> list[list[str]]:
    """The words of each line of a shell snippet, comments left out. A line that ends with a
    backslash goes on."""
    text = snippet.text.replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]
