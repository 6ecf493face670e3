"""Make a folder of libraries to link with (LDFLAGS=-LFOLDER), by which what the ordinary compiler
builds runs on every system that a manylinux tag names.

usage: old_libraries.py FOLDER [--policy manylinux_2_28]

- libc, libm, libpthread, libdl, librt: symbols of the old glibc without code, which Zig makes, its
  part that is linked statically, and tools/wheel/old_glibc.c for what newer headers ask for;
- libstdc++: symbols of the versions that the tag allows, without code, and behind them the
  compiler's own static library for all others, as in the toolsets of the manylinux images;
- libgomp.so.1, from the wheel of scikit-learn, which was built on such a system.

Needs the packages of tools/wheel/requirements.txt, and g++.

Images do not do it: that of manylinux_2_28, in which cibuildwheel makes wheels of the CPU backend
for releases, has no nvcc, and NVIDIA's, which have, come with glibc 2.35, too new for RHEL 8 and 9.
Both need Docker, which not every machine has: where it is missing, a wheel for older systems can be
made by these libraries alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import auditwheel
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

HERE = Path(__file__).parent
CXX = os.environ.get("CXX", "g++")
GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")
LOADER = "ld-linux-x86-64.so.2"


def run(*command: str | Path, **environment: str) -> str:
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ).stdout.strip()


def allowed_versions(policy: str) -> set[str]:
    """Names of the symbol versions of libstdc++ that the tag allows, such as GLIBCXX_3.4.24."""
    path = Path(auditwheel.__file__).parent / "policy" / "manylinux-policy.json"
    policies = {found["name"]: found for found in json.loads(path.read_text(encoding="utf-8"))}
    versions = policies[policy]["symbol_versions"]["x86_64"]
    return {f"{name}_{v}" for name in ("GLIBCXX", "CXXABI") for v in versions[name]}


def order(version: str) -> tuple[str, list[int]]:
    name, _, numbers = version.partition("_")
    return name, [int(part) for part in numbers.split(".") if part.isdigit()]


def make_glibc(folder: Path, release: str) -> None:
    cache = folder / "zig"
    nothing = folder / "nothing.c"
    nothing.write_text("int packhorse_nothing;\n", encoding="utf-8")
    run(
        *(
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            f"x86_64-linux-gnu.{release}",
            "-shared",
        ),
        *("-fno-sanitize=all", "-o", folder / "nothing.so", nothing, "-lm", "-lpthread", "-ldl"),
        *("-lrt",),
        ZIG_GLOBAL_CACHE_DIR=str(cache),
        ZIG_LOCAL_CACHE_DIR=str(cache),
    )
    for name in (*GLIBC, "libc_nonshared.a"):
        shutil.copy(next(cache.rglob(name)), folder / name)
    shutil.copy(next(cache.rglob("libld.so.2")), folder / LOADER)
    run(CXX, "-x", "c", "-O2", "-fPIC", "-c", HERE / "old_glibc.c", "-o", folder / "old_glibc.o")
    run("ar", "rcs", folder / "libold_glibc.a", folder / "old_glibc.o")
    for name in GLIBC[1:]:
        write_script(folder / f"{name.partition('.so')[0]}.so", f"INPUT({folder / name})")
    needed = " ".join(
        str(folder / name) for name in ("libpthread.so.0", "libdl.so.2", "librt.so.1", LOADER)
    )
    libraries = " ".join(
        str(folder / name) for name in ("libold_glibc.a", "libc_nonshared.a", "libc.so.6")
    )
    write_script(folder / "libc.so", f"GROUP({libraries} AS_NEEDED({needed}))")


def make_libstdcxx(folder: Path, allowed: set[str]) -> None:
    library = Path(run(CXX, "-print-file-name=libstdc++.so.6"))
    symbols = defaultdict(list)  # version -> its symbols
    assembler = [".data", "here: .zero 16", '.section .tbss,"awT",@nobits', "there: .zero 16"]
    for name, (version, kind) in versioned_symbols(library, allowed).items():
        symbols[version].append(name)
        place = "there" if kind == "tls_object" else "here"
        assembler += [f".globl {name}", f".type {name},@{kind}", f".set {name},{place}"]
        assembler += [f".size {name},8"]
    script = [
        f"{version} {{ global: {' '.join(f'{name};' for name in symbols[version])} }};"
        for version in sorted(symbols, key=order)
    ]
    (folder / "libstdcxx.s").write_text("\n".join([*assembler, ""]), encoding="utf-8")
    (folder / "libstdcxx.map").write_text("\n".join([*script, ""]), encoding="utf-8")
    stub = folder / "libstdc++.so.6"
    run(
        *(CXX, "-nostdlib", "-shared", f"-Wl,-soname,{stub.name}", "-o", stub),
        *(f"-Wl,--version-script={folder / 'libstdcxx.map'}", folder / "libstdcxx.s"),
    )
    static = run(CXX, "-print-file-name=libstdc++.a")
    write_script(folder / "libstdc++.so", f"INPUT({stub} {static})")


def versioned_symbols(library: Path, allowed: set[str]) -> dict[str, tuple[str, str]]:
    """The newest allowed version of each symbol, and its kind as an assembler calls it."""
    kinds = {"STT_FUNC": "function", "STT_OBJECT": "object", "STT_TLS": "tls_object"}
    found: dict[str, tuple[str, str]] = {}
    with library.open("rb") as file:
        elf = ELFFile(file)
        names = elf.get_section_by_name(".dynsym")
        versions = elf.get_section_by_name(".gnu.version")
        definitions = elf.get_section_by_name(".gnu.version_d")
        assert isinstance(names, SymbolTableSection)
        assert isinstance(versions, GNUVerSymSection)
        assert isinstance(definitions, GNUVerDefSection)
        of_index = {
            definition["vd_ndx"]: next(iter(auxiliaries)).name
            for definition, auxiliaries in definitions.iter_versions()
        }
        for i, symbol in enumerate(names.iter_symbols()):
            index = versions.get_symbol(i)["ndx"]
            kind = kinds.get(symbol["st_info"]["type"])
            # SHN_ABS: the names of the versions themselves.
            if (
                symbol["st_shndx"] in ("SHN_UNDEF", "SHN_ABS")
                or kind is None
                or index == "VER_NDX_GLOBAL"
            ):
                continue
            version = of_index[index & 0x7FFF]
            old = found.get(symbol.name)
            if version in allowed and (old is None or order(old[0]) < order(version)):
                found[symbol.name] = version, kind
    return found


def fetch_libgomp(folder: Path) -> None:
    wheels = folder / "wheels"
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.11"),
        *("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64"),
        *("--dest", wheels, "--requirement", HERE / "libgomp.txt"),
    )
    with zipfile.ZipFile(next(wheels.glob("scikit_learn-*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if "/libgomp" in name)
        (folder / "libgomp.so.1").write_bytes(wheel.read(name))
        listed = json.loads(
            wheel.read(next(n for n in wheel.namelist() if n.endswith("sboms/auditwheel.cdx.json")))
        )
    # Package of the system on which that wheel was made, for tools/wheel/sbom.py.
    origin = next(found for found in listed["components"] if found["name"] == "libgomp")
    origin["wheel"] = listed["metadata"]["component"]["purl"].partition("?")[0]
    (folder / "libgomp.json").write_text(json.dumps(origin), encoding="utf-8")
    run("patchelf", "--page-size", "4096", "--set-soname", "libgomp.so.1", folder / "libgomp.so.1")


def write_script(path: Path, text: str) -> None:
    path.write_text(f"/* GNU ld script */\n{text}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--policy", default="manylinux_2_28")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make_glibc(folder, given.policy.removeprefix("manylinux_").replace("_", "."))
    make_libstdcxx(folder, allowed_versions(given.policy))
    fetch_libgomp(folder)


if __name__ == "__main__":
    main()
