"""Files include and import only their own level and those below (CONTRIBUTING.md, "The six
levels"). In a backend, a family of kernels includes no other family; and no file includes, and no
module imports, itself by way of others.

    python tools/check_levels.py [ROOT]

Prints each include and import that breaks a rule, as FILE:LINE, and fails if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The folders that the files of a folder may include besides their own.
MAY_INCLUDE = {
    "pyruntime": {"generation", "session", "model", "audio", "image", "ops", "core", "include"},
    "runtime/generation": {"session", "model", "ops", "core", "include"},
    "runtime/session": {"model", "ops", "core", "include"},
    "runtime/model": {"ops", "core", "include"},
    # These prepare inputs on the host, by the vector kernels and threads of the CPU, and frames of
    # audio on other devices; they know no model.
    "runtime/audio": {"cpu", "ops", "core", "include"},
    "runtime/image": {"cpu", "core", "include"},
    "runtime/ops": {"core", "include"},
    "runtime/cpu": {"ops", "core", "include"},  # the boundary's headers, which backends implement
    "runtime/cuda": {"ops", "core", "include"},
    "runtime/core": {"include"},
    "runtime/include": set(),
}
# The only file that chooses between the backends.
EXCEPTIONS = {"runtime/ops/backend.cc": {"cpu", "cuda"}}

# The folders of each backend that all of its kernel families may include, and the later ones the
# earlier. Every other folder of a backend is a family; files beside the folders may include all.
SHARED = {
    "runtime/cpu": ["threads", "memory", "isa", "common"],
    "runtime/cuda": ["device", "common"],
}
# The families that are built of another one: experts are dense layers, and processors bring their
# own ways to compute these.
BUILT_OF = {"runtime/cpu/moe": "gemm", "runtime/cpu/x86": "gemm", "runtime/cpu/arm": "gemm"}

# The folders in which an #include is searched, besides the folder of the file itself.
INCLUDE_FOLDERS = ["runtime", "runtime/include", "pyruntime"]
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".cuh", ".inc", ".pyx", ".pxd"}
INCLUDE = re.compile(r'^\s*(?:#include|cdef extern from) "([^"]+)"')


def folder_of(path: str) -> str:
    """The folder of MAY_INCLUDE in which a file lies, or "" if there is none."""
    return next((folder for folder in MAY_INCLUDE if path.startswith(f"{folder}/")), "")


def may_include(file: str, included: str) -> bool:
    ours, theirs = folder_of(file), folder_of(included)
    allowed = MAY_INCLUDE[ours] | EXCEPTIONS.get(file, set())
    return theirs in ("", ours) or theirs.rpartition("/")[2] in allowed


def room_of(path: str, backend: str) -> str:
    """The folder of a backend in which a file lies, or "" for files beside the folders."""
    room, slash, _ = path.removeprefix(f"{backend}/").partition("/")
    return room if slash else ""


def crosses_families(file: str, included: str) -> bool:
    """True if both are files of one backend, and the first must not know the room of the second."""
    backend = folder_of(file)
    if backend not in SHARED or folder_of(included) != backend:
        return False
    ours, theirs = room_of(file, backend), room_of(included, backend)
    if ours in ("", theirs):
        return False
    shared = SHARED[backend]
    below = shared[: shared.index(ours)] if ours in shared else shared
    return theirs not in below and theirs != BUILT_OF.get(f"{backend}/{ours}")


def includes(root: Path) -> dict[str, dict[str, int]]:
    """The files of all levels, and of each the files that it includes, with their line."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(path for folder in MAY_INCLUDE for path in (root / folder).rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        own = found.setdefault(path.relative_to(root).as_posix(), {})
        folders = [path.parent, *(root / folder for folder in INCLUDE_FOLDERS)]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (include := INCLUDE.match(line)) is None:
                continue
            target = next((f / include[1] for f in folders if (f / include[1]).is_file()), None)
            if target is not None:  # else a header of another library
                own[target.resolve().relative_to(root.resolve()).as_posix()] = number
    return found


def cycles(graph: dict[str, dict[str, int]]) -> Iterator[str]:
    """One line for each include by which a file includes itself, by way of others or at once."""
    done: set[str] = set()

    def visit(file: str, path: list[str]) -> Iterator[str]:
        path = [*path, file]
        for included, number in graph.get(file, {}).items():
            if included in path:
                around = " -> ".join([*path[path.index(included) :], included])
                yield f"{file}:{number}: include cycle {around}"
            elif included not in done:
                yield from visit(included, path)
        done.add(file)

    for file in graph:
        if file not in done:
            yield from visit(file, [])


def forbidden(graph: dict[str, dict[str, int]]) -> Iterator[str]:
    for file, included_files in graph.items():
        for included, number in included_files.items():
            ours = folder_of(file)
            if crosses_families(file, included):
                ours += f"/{room_of(file, ours)}"
            elif may_include(file, included):
                continue
            yield f"{file}:{number}: {ours} must not include {included}"


def violations(root: Path) -> list[str]:
    """Includes that break a rule. A forbidden include often makes a cycle as well, which is then no
    more news; cycles are looked for where all includes are allowed."""
    graph = includes(root)
    return list(forbidden(graph)) or list(cycles(graph))


def _upwards(rooms: dict[str, str]) -> dict[str, str]:
    """Rooms with what they may import, to which all rooms named before each are added."""
    names = list(rooms)
    return {name: " ".join([rooms[name], *names[:number]]) for number, name in enumerate(names)}


# Imports that the modules of a Python package may have besides their own package; "top" are the
# modules that lie in no room. A room that is not named here counts to the one around it; a module
# may be a room of its own.
# `packhorse` may import all of `packhorse_weights`, which knows nothing of it. The `__init__.py` of
# both take from anywhere the names that users import.
# Rooms that run models.
_MODELS = "top generation image text text.generation text.tasks text.tokenization"
MAY_IMPORT = {
    "packhorse": {
        "top": "_native generation",
        "_native": "",
        "ops": "top _native",
        "generation": "top _native",
        "text": "top generation text.generation text.tasks text.tokenization",
        "text.tokenization": "top text",
        "text.tasks": "top ops text text.tokenization",
        "text.generation": "top _native generation text text.tokenization text.tool_calls",
        "text.tool_calls": "text.generation",
        "evaluation": "top generation text text.tasks",
        "audio": "top _native generation text",
        "image": "top _native text text.tasks",
        **_upwards(
            {
                "serve.errors": "",
                "serve.settings": "top",
                "serve.observability": "",
                "serve.models": f"{_MODELS} audio",
                "serve.http": "_native",
                "serve.openapi": "top",
                "serve.protocols": f"{_MODELS} audio",
                "serve": "",
            }
        ),
        "ray": "top text image serve",
        "cli": "top audio text text.tasks image serve serve.settings ray evaluation",
    },
    "packhorse_weights": {
        "top": "adapters architectures formats hub quantization sentence_transformers tokenizers",
        "adapters": "top architectures",
        "architectures": "top",
        "formats": "top quantization tokenizers",
        "hub": "top adapters sentence_transformers",
        "quantization": "top formats",
        "sentence_transformers": "top",
        "tokenizers": "top formats",
    },
}
PYTHON_FOLDERS = ["pyruntime", "weights_tools"]


class Import(NamedTuple):
    line: int
    module: str
    for_types: bool  # under `if TYPE_CHECKING`, never at run time


def python_modules(root: Path) -> dict[str, Path]:
    """Every module of our packages, by its dotted name."""
    found = {}
    for folder in PYTHON_FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports_of(path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    """Imports of our own modules, those in functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typed: set[ast.AST] = set()
    for node in ast.walk(tree):  # outer nodes come before inner ones
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            typed |= {inner for statement in node.body for inner in ast.walk(statement)}
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [one.name for one in node.names]
        if isinstance(node, ast.ImportFrom):
            package = node.module or ""
            inner_names = [f"{package}.{name}" for name in names]
            names = [name if name in modules else package for name in inner_names]
        for name in dict.fromkeys(names):
            if name.partition(".")[0] in ("packhorse", "packhorse_weights"):
                yield Import(node.lineno, name, node in typed)


def room_of_module(module: str) -> tuple[str, str]:
    """The package of a module, and the room of MAY_IMPORT that it counts to."""
    package, _, room = module.partition(".")
    while room and room not in MAY_IMPORT[package]:
        room = room.rpartition(".")[0]
    return package, room or "top"


def import_violations(root: Path) -> Iterator[str]:
    modules = python_modules(root)
    for module, path in modules.items():
        package, room = room_of_module(module)
        allowed = {(package, one) for one in (room, *MAY_IMPORT[package][room].split())}
        if package == "packhorse":
            allowed |= {("packhorse_weights", one) for one in MAY_IMPORT["packhorse_weights"]}
        for line, imported, _ in imports_of(path, modules):
            if module not in MAY_IMPORT and room_of_module(imported) not in allowed:
                name = path.relative_to(root).as_posix()
                yield f"{name}:{line}: {package}.{room} must not import {imported}"


def import_circles(root: Path) -> Iterator[str]:
    """Each set of modules that import one another, over any number of steps."""
    modules = python_modules(root)
    reached: dict[str, set[str]] = {
        module: {
            one.module
            for one in imports_of(path, modules)
            if one.module in modules and one.module != module and not one.for_types
        }
        for module, path in modules.items()
    }
    for through in modules:  # Warshall's transitive closure
        for found in reached.values():
            if through in found:
                found |= reached[through]
    circles = {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }
    for circle in sorted(circles, key=sorted):
        first = modules[min(circle)].relative_to(root).as_posix()
        yield f"{first}:1: imports in a circle: {', '.join(sorted(circle))}"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    found = [*violations(root), *import_violations(root), *import_circles(root)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
