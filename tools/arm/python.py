"""Unpack Debian's Python for arm64, and the packages that the tests need, into a folder.

usage: python.py FOLDER

Nothing is installed: packages come by apt from where the system has its own, with lists of their
own, and are unpacked into FOLDER/root; packages of PyPI (aarch64 wheels) into FOLDER/site; the
headers for the extension modules into FOLDER/include. FOLDER/python runs that Python under QEMU. A
second call does nothing. Needs a Debian system: so what its cross compiler makes finds a C library
of the same version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Files in which Debian lists the archives of its packages, newer versions first.
SOURCES = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
DEBIAN_PACKAGES = ["python3-minimal", "libpython3-stdlib", "libpython3-dev", "libstdc++6"]
GROUPS = ["project", "text", "cli", "test"]  # dependencies in pyproject.toml
NOT_NEEDED = ("mypy",)

# Command -> the Debian package that it belongs to.
COMMANDS = {
    "qemu-aarch64": "qemu-user",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}


def check() -> None:
    missing = [package for command, package in COMMANDS.items() if shutil.which(command) is None]
    if missing:
        sys.exit(
            f"nox -s test-arm needs Debian packages that are not installed: {' '.join(missing)}\n"
            f"  apt-get install --no-install-recommends {' '.join(missing)}"
        )
    if not any(path.exists() for path in SOURCES):
        sys.exit(f"nox -s test-arm needs Debian, with {' or '.join(map(str, SOURCES))}")


def run(*command: str | Path, quiet: bool = True) -> None:
    found = subprocess.run(command, capture_output=quiet, text=True)
    if found.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{found.stdout or ''}{found.stderr or ''}")


def unpack_debian(folder: Path) -> Path:
    """Debian's Python with all that it depends on, in folder/root."""
    apt, root = folder / "apt", folder / "root"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State": apt / "state",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": next(path for path in SOURCES if path.exists()),
        "Dir::Etc::sourceparts": "-",
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    run("apt-get", *words, "update")
    run("apt-get", *words, "install", "--yes", "--no-install-recommends", "--download-only",
        *DEBIAN_PACKAGES)  # fmt: skip
    root.mkdir()
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run("dpkg-deb", "--extract", package, root)
    if not (root / "lib").exists():  # suites whose packages have /usr/lib alone
        (root / "lib").symlink_to("usr/lib")
    return root


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    check()
    if (folder / "python").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root = unpack_debian(folder)
    name = (root / "usr/bin/python3").readlink().name  # python3.11

    # The headers, without those of the C library, which the cross compiler has.
    headers = folder / "include"
    shutil.copytree(root / "usr/include" / name, headers)
    shutil.copy(root / "usr/include/aarch64-linux-gnu" / name / "pyconfig.h", headers)

    requirements = subprocess.run(
        [sys.executable, ROOT / "tools/requirements.py", *GROUPS],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    version = name.removeprefix("python")
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
        "--target", folder / "site", "--only-binary=:all:", "--implementation=cp",
        "--platform=manylinux_2_28_aarch64", "--platform=manylinux_2_17_aarch64",
        f"--python-version={version}", f"--abi=cp{version.replace('.', '')}", "--abi=abi3",
        "--abi=none", *[r for r in requirements if not r.startswith(NOT_NEEDED)])  # fmt: skip

    emulated = folder / "python"
    emulated.write_text(
        f'#!/bin/sh\nexec qemu-aarch64 -L "{root}" "{root}/usr/bin/{name}" "$@"\n', encoding="utf-8"
    )
    emulated.chmod(0o755)


if __name__ == "__main__":
    main()
