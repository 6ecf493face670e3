"""Real English text that every machine has: Python's own documentation.

The lengths of the standard library's docstrings vary as those of real texts do: many have one line,
some fill a page.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Passage:
    name: str  # such as "textwrap.dedent"
    text: str


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings(node: _Documented, name: str) -> Iterator[Passage]:
    text = ast.get_docstring(node)
    if text:
        yield Passage(name, text)
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not child.name.startswith("_"):
            yield from _docstrings(child, f"{name}.{child.name}")


def read_passages(count: int) -> list[Passage]:
    """Returns the first `count` docstrings in an order that is random, but always the same.

    Sources are parsed and never imported, because importing some modules has effects. Raises
    RuntimeError if the library comes without its sources.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = [*library.glob("[a-z]*.py"), *library.glob("[a-z]*/__init__.py")]
    passages: dict[str, Passage] = {}
    for file in sorted(files):
        name = file.parent.name if file.name == "__init__.py" else file.stem
        tree = ast.parse(file.read_bytes())
        for passage in _docstrings(tree, name):
            passages.setdefault(passage.text, passage)
    if not passages:
        raise RuntimeError(f"{library}: no sources of the standard library")
    order = list(passages.values())
    random.Random(0).shuffle(order)
    return order[:count]
