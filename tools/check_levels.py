"""A file includes only its own level and those below (CONTRIBUTING.md, "The six levels").

    python tools/check_levels.py [ROOT]

Prints each include that breaks the rule, as FILE:LINE, and fails if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# The folders that the files of a folder may include besides their own.
MAY_INCLUDE = {
    "pyruntime": {"generation", "session", "model", "ops", "core", "include"},
    "runtime/generation": {"session", "model", "ops", "core", "include"},
    "runtime/session": {"model", "ops", "core", "include"},
    "runtime/model": {"ops", "core", "include"},
    "runtime/ops": {"core", "include"},
    "runtime/cpu": {"ops", "core", "include"},  # the boundary's headers, which backends implement
    "runtime/cuda": {"ops", "core", "include"},
    "runtime/core": {"include"},
    "runtime/include": set(),
}
# The only file that chooses between the backends.
EXCEPTIONS = {"runtime/ops/backend.cc": {"cpu", "cuda"}}

# The folders in which an #include is searched, besides the folder of the file itself.
INCLUDE_FOLDERS = ["runtime", "runtime/include", "pyruntime"]
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".cuh", ".pyx", ".pxd"}
INCLUDE = re.compile(r'^\s*(?:#include|cdef extern from) "([^"]+)"')


def folder_of(path: str) -> str:
    """The folder of MAY_INCLUDE in which a file lies, or "" if there is none."""
    return next((folder for folder in MAY_INCLUDE if path.startswith(f"{folder}/")), "")


def may_include(file: str, included: str) -> bool:
    ours, theirs = folder_of(file), folder_of(included)
    allowed = MAY_INCLUDE[ours] | EXCEPTIONS.get(file, set())
    return theirs in ("", ours) or theirs.rpartition("/")[2] in allowed


def violations(root: Path) -> Iterator[str]:
    for path in sorted(path for folder in MAY_INCLUDE for path in (root / folder).rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (found := INCLUDE.match(line)) is None:
                continue
            folders = [path.parent, *(root / folder for folder in INCLUDE_FOLDERS)]
            target = next((f / found[1] for f in folders if (f / found[1]).is_file()), None)
            if target is None:  # a header of another library
                continue
            included = target.resolve().relative_to(root.resolve()).as_posix()
            if not may_include(name, included):
                yield f"{name}:{number}: {folder_of(name)} must not include {included}"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    found = list(violations(root))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
