"""Runs clang-tidy (.clang-tidy) over the C++ sources of a configured build folder, in parallel.

    python tools/clang_tidy.py BUILD_FOLDER

It checks the files of runtime/ and pyruntime/ in the folder's compile_commands.json, except the
vector kernels. Those are one header for five instruction sets, which the compiler's own warnings
and the sanitizers check. The script fails if clang-tidy finds anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def sources(build: Path) -> list[str]:
    commands = json.loads((build / "compile_commands.json").read_text())
    paths = sorted({(Path(c["directory"]) / c["file"]).resolve() for c in commands})
    names = [path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)]
    return [
        name
        for name in names
        if name.startswith(("runtime/", "pyruntime/"))
        and not name.startswith(("runtime/cpu/x86/kernels_", "runtime/cuda/"))
    ]


def main() -> int:
    build = Path(sys.argv[1])

    def check(name: str) -> tuple[int, str]:
        # The build's compiler may be GCC, and clang does not know some of its options.
        unknown = "--extra-arg=-Wno-unknown-warning-option"
        command = ["clang-tidy", "-p", str(build), "--quiet", unknown, name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        # stderr mostly counts warnings in headers of other libraries.
        return done.returncode, done.stdout or (done.stderr if done.returncode else "")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, sources(build)))
    print("".join(text for _, text in results), end="")
    bad = sum(code != 0 for code, _ in results)
    print(f"clang-tidy: {len(results)} files, {bad} with findings")
    return 1 if bad or not results else 0


if __name__ == "__main__":
    sys.exit(main())
