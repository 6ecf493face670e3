"""Changes random lines, one at a time, and tells which changes no test notices.

    python tools/mutate.py python [--count 20] [--seed 0]
    python tools/mutate.py cpp [--count 20] [--seed 0]

A change is one operator, constant or branch: `<` becomes `<=`, `+` becomes `-`, 3 becomes 4, `and`
becomes `or`, a condition its opposite. The tests of the part that was changed run until the first
fails. Prints for each change KILLED and by what, DOES NOT COMPILE, or SURVIVED, and what was
changed; a survivor wants a test, or is a change that nobody could see (a bound on speed alone,
say). Works on a copy of the tree in build/mutants, whose C++ is compiled once before; needs what
`make test` leaves in .venv.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOM = ROOT / "build" / "mutants"

# The tests of a part: of C++ those whose name begins so, and files or folders of Python tests.
PYTHON_TESTS = {
    "pyruntime/packhorse/ops": ["tests/python/ops"],
    "pyruntime/packhorse/text/generation": ["tests/python/generation", "tests/python/text"],
    "pyruntime/packhorse/text": [
        "tests/python/text",
        "tests/python/generation",
        "tests/tools/test_types.py",
    ],
    "pyruntime/packhorse/generation": ["tests/python/generation"],
    "pyruntime/packhorse/audio": ["tests/python/audio"],
    "pyruntime/packhorse/image": ["tests/python/image", "tests/python/models"],
    "pyruntime/packhorse/serve": ["tests/python/serve"],
    "pyruntime/packhorse/cli": ["tests/python/cli"],
    "pyruntime/packhorse/evaluation": ["tests/python/text", "tests/python/tools"],
    "pyruntime/packhorse": ["tests/python/models", "tests/python/ops", "tests/python/text"],
    "weights_tools": ["tests/python/checkpoints", "tests/python/models", "tests/hostile"],
}
CPP_TESTS = {
    "runtime/audio": ["tests/python/audio"],
    "runtime/image": ["tests/python/image"],
    "runtime/core": ["tests/python/checkpoints", "tests/hostile"],
    "runtime/generation": ["tests/python/generation", "tests/python/text"],
    "runtime/session": ["tests/python/models"],
    "runtime/model": ["tests/python/models", "tests/python/generation"],
    "runtime/ops": ["tests/python/ops"],
    "runtime/cpu": ["tests/python/ops", "tests/python/models", "tests/python/generation"],
}
SKIPPED = ("/ray/", "/__init__.py", "/arm/", "/page/")  # code that these tests do not run

OPPOSITES = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SWAPS = {" + ": " - ", " - ": " + ", " * ": " + ", " && ": " || ", " || ": " && "}
WORDS = {"and": "or", "or": "and", "true": "false", "false": "true", "True": "False"}
STRING = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
COMMENT = re.compile(r"\s*(?://|#|\*|/\*)")
PLACE = re.compile(
    r" (?P<compare>==|!=|<=|>=|<|>) | (?P<swap>\+|-|\*|&&|\|\|) "
    r"|\b(?P<word>and|or|true|false|True|False)\b|(?<![\w.\"])(?P<number>\d+)(?![\w.\"])"
    r"|^\s*(?:\} else )?(?P<branch>if|while)\b"
)


class Mutant(NamedTuple):
    """One change: the line of a file, from 0, before and after."""

    file: str
    line: int
    before: str
    after: str


def changes_of(line: str) -> Iterator[str]:
    """The line with one thing changed, for each thing that can be."""
    hidden = STRING.sub(lambda found: "~" * len(found[0]), line)
    code = re.split(r"//|#", hidden)[0]
    for found in PLACE.finditer(code):
        kind = str(found.lastgroup)
        begin, end = found.span(kind)
        word = found[kind]
        if kind == "branch":
            if new := _opposite_branch(line):
                yield new
            continue
        if kind == "compare":
            word = OPPOSITES[word]
        elif kind == "swap":
            word = SWAPS[f" {word} "].strip()
        elif kind == "word":
            word = WORDS.get(word, "True")
        else:
            word = str(int(word) + 1)
        yield line[:begin] + word + line[end:]


def _opposite_branch(line: str) -> str | None:
    if found := re.match(r"(\s*(?:el)?if )(.+)(:\s*)$", line):
        return f"{found[1]}not ({found[2]}){found[3]}"
    if found := re.match(r"(\s*if \()([^()]*(?:\([^()]*\)[^()]*)*)(\).*)$", line):
        return f"{found[1]}!({found[2]}){found[3]}"
    return None


def code_lines(text: str, python: bool) -> Iterator[tuple[int, str]]:
    """The lines of a file that are neither comments nor of docstrings, with their numbers."""
    in_doc = False
    for number, line in enumerate(text.splitlines()):
        quotes = line.count('"""') if python else 0
        if in_doc or quotes:
            in_doc ^= quotes == 1
            continue
        skipped = ("#include", "import ", "from ", "namespace", "static_assert", "template")
        if not COMMENT.match(line) and not line.lstrip().startswith(skipped):
            yield number, line


def mutants(kind: str, count: int, seed: int) -> list[Mutant]:
    """Every line that can be changed is as likely as any other."""
    python = kind == "python"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    parts, suffixes = (PYTHON_TESTS, (".py",)) if python else (CPP_TESTS, (".cc", ".h"))
    found: list[tuple[str, int, str]] = []
    for file in listed.stdout.split():
        skipped = any(part in file for part in SKIPPED)
        if skipped or not (file.startswith(tuple(parts)) and file.endswith(suffixes)):
            continue
        for number, line in code_lines((ROOT / file).read_text(), python):
            if next(changes_of(line), None) is not None:
                found.append((file, number, line))
    choice = random.Random(seed)
    return [
        Mutant(file, number, line, choice.choice(list(changes_of(line))))
        for file, number, line in choice.sample(found, count)
    ]


def run(tree: Path, *command: str | Path, **more: str) -> str | None:
    """Runs a command in the tree; None if it succeeds, else what it printed. Raises
    subprocess.TimeoutExpired after 15 minutes."""
    environment = os.environ | more
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900
    )
    return done.stdout + done.stderr if done.returncode != 0 else None


def prepare(kind: str) -> None:
    """A copy of the tree, and of the packages as they are installed, to be changed."""
    room = ROOM / kind
    shutil.rmtree(room, ignore_errors=True)
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for file in files.stdout.split():
        (room / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, room / "tree" / file)
    for name in ("packhorse", "packhorse_weights"):
        shutil.copytree(Path(sysconfig.get_path("platlib")) / name, room / "packages" / name)
    if kind == "cpp":
        failed = run(
            room / "tree", "cmake", "-S", ".", "-B", room / "build", "-G", "Ninja",
            "-Wno-deprecated", "-DCMAKE_BUILD_TYPE=Release", "-DPACKHORSE_CUDA=OFF",
            "-DPACKHORSE_BUILD_TESTS=ON", "-DSKBUILD=ON", "-DCMAKE_INSTALL_LIBDIR=lib",
            f"-DPython_EXECUTABLE={sys.executable}",
        )  # fmt: skip
        if failed := failed or run(room, "cmake", "--build", room / "build"):
            raise SystemExit(f"the tree does not build:\n{failed}")


def tests_of(file: str, parts: dict[str, list[str]]) -> Sequence[str]:
    return next(tests for folder, tests in parts.items() if file.startswith(folder))


def judged(mutant: Mutant, kind: str) -> str:
    """A verdict. TIMED OUT says nothing: the mutant may hang, or the machine be busy."""
    try:
        return verdict_of(mutant, kind, ROOM / kind)
    except subprocess.TimeoutExpired:
        return "TIMED OUT"


def verdict_of(mutant: Mutant, kind: str, room: Path) -> str:
    packages = room / "packages"
    if kind == "cpp":
        if run(room, "cmake", "--build", room / "build"):
            return "DOES NOT COMPILE"
        if failed := run(room, room / "build" / "tests" / "cpp" / "packhorse_tests"):
            return f"KILLED by packhorse_tests: {failed.splitlines()[-1]}"
        run(room, "cmake", "--install", room / "build", "--prefix", packages / "packhorse")
        tests = tests_of(mutant.file, CPP_TESTS)
    else:
        name = mutant.file.split("/", 1)[1]
        shutil.copy(room / "tree" / mutant.file, packages / name)
        tests = tests_of(mutant.file, PYTHON_TESTS)
    failed = run(
        room / "tree", sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n2",
        "--dist", "loadfile", *tests, PYTHONPATH=str(packages), PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    if failed is None:
        return "SURVIVED"
    named = re.search(r"^(?:FAILED|ERROR) (.*)", failed, re.MULTILINE)
    return f"KILLED by {named[1] if named else failed.splitlines()[-1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["python", "cpp"])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    prepare(arguments.kind)
    room = ROOM / arguments.kind
    verdicts = Counter[str]()
    for mutant in mutants(arguments.kind, arguments.count, arguments.seed):
        path = room / "tree" / mutant.file
        original = path.read_text()
        lines = original.splitlines(keepends=True)
        lines[mutant.line] = mutant.after + "\n"
        path.write_text("".join(lines))
        verdict = judged(mutant, arguments.kind)
        verdicts[verdict.split(" by ")[0]] += 1
        print(f"{mutant.file}:{mutant.line + 1} {verdict}", flush=True)
        print(f"  - {mutant.before.strip()}\n  + {mutant.after.strip()}", flush=True)
        path.write_text(original)
        if arguments.kind == "python":
            shutil.copy(path, room / "packages" / mutant.file.split("/", 1)[1])
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
