"""Comments and docstrings begin with a noun or a verb that names the thing.

    python tools/check_openings.py [ROOT]

Prints each that begins with a word that leans on something else ("Of ...", "Likewise", "What ..."),
as FILE:LINE, and fails if there is one. A trailing comment may be a condition ("without experts"),
but not a genitive ("of pages").
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = [
    *("runtime", "pyruntime", "weights_tools", "tests", "benchmarks", "examples", "tools"),
    *("cmake", "third_party", ".ci"),
]
CPP = {".h", ".cc", ".cpp", ".cu", ".cuh", ".inc"}
PYTHON = {".py", ".pyi", ".pyx", ".pxd"}
BUILD = {"CMakeLists.txt", "Makefile", "run"}  # names of files; those of CMake too

WORDS = r"(?:[Oo]f|[Ll]ikewise|[Bb]ut for|[Tt]he same|As [\w:]+ has it)\b"
WHOLE = rf"(?:{WORDS}|Without\b|What\b|Whether\b|How\b)"
TRAILING = {"//": re.compile(rf"\S\s+//[/<]* {WORDS}"), "#": re.compile(rf"\S\s+#:? {WORDS}")}
LINE = {"//": re.compile(rf"^\s*//[/<!]* {WHOLE}"), "#": re.compile(rf"^\s*#:? {WHOLE}")}
DOC = re.compile(rf"\s*{WHOLE}")


def openings(text: str, mark: str) -> Iterator[int]:
    """Numbers of lines with a comment that begins so. One that continues the line above does not
    begin anything."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        begins = LINE[mark].match(line) and not before.lstrip().startswith(mark)
        if begins or TRAILING[mark].search(line):
            yield number
        before = line


def docstrings(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node, clean=False)
            if doc is not None and DOC.match(doc):
                yield node.body[0].lineno


def violations(root: Path) -> Iterator[str]:
    inner = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    for path in sorted([*inner, *root.glob("*")]):
        is_build = path.name in BUILD or path.suffix == ".cmake"
        if not (is_build or path.suffix in CPP | PYTHON) or not path.is_file():
            continue
        text, name = path.read_text(), path.relative_to(root).as_posix()
        lines = set(openings(text, "//" if path.suffix in CPP else "#"))
        if path.suffix in {".py", ".pyi"}:
            lines |= set(docstrings(text))
        for number in sorted(lines):
            yield f"{name}:{number}: {text.splitlines()[number - 1].strip()}"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    found = list(violations(root))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
