"""Print what a wheel of Packhorse holds besides its own code, in CycloneDX JSON (PEP 770).

usage: sbom.py [LIBRARIES] [--cuda]    LIBRARIES: what old_libraries.py made. Without it libgomp is
                                       that of the compiler, on a system with packages of rpm

Versions are those that the environment has, which tools/wheel/requirements.txt pins.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CXX = os.environ.get("CXX", "g++")


def component(
    name: str, version: str, purl: str, licence: str, why: str, file: Path | None = None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "description": why,
        "licenses": [{"expression": licence}],
    }
    if file is not None:
        found["hashes"] = [
            {"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}
        ]
    return found


def from_pypi(name: str, licence: str, why: str) -> dict[str, Any]:
    return component(name, version(name), f"pkg:pypi/{name}@{version(name)}", licence, why)


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def libgomp(libraries: Path | None) -> dict[str, Any]:
    if libraries is not None:
        found = json.loads((libraries / "libgomp.json").read_text(encoding="utf-8"))
        file, why = libraries / "libgomp.so.1", f", as the wheel of {found['wheel']} holds it"
    else:
        file, why = Path(output(CXX, "-print-file-name=libgomp.so.1")).resolve(), ""
        number = output("rpm", "-q", "--queryformat", "%{VERSION}-%{RELEASE}", "-f", file)
        found = {"version": number, "purl": f"pkg:rpm/almalinux/libgomp@{number}"}
    why = f"packhorse/lib/libgomp.so.1{why}"
    licence = "GPL-3.0-or-later WITH GCC-exception-3.1"
    return component("libgomp", found["version"], found["purl"], licence, why, file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", type=Path, nargs="?")
    parser.add_argument("--cuda", action="store_true")
    given = parser.parse_args()
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    match = re.search(r"project\(packhorse VERSION ([0-9.]+)", text)
    assert match is not None
    own = f"pkg:pypi/packhorse@{match[1]}"
    gcc = output(CXX, "-dumpfullversion")
    onednn = [
        from_pypi("onednn-cpu-gomp", "Apache-2.0", "packhorse/lib/libdnnl.so.3"),
        libgomp(given.libraries),
    ]
    components = [
        *(onednn if platform.machine() == "x86_64" else []),
        component(
            "libstdc++",
            gcc,
            f"pkg:generic/gcc@{gcc}",
            "GPL-3.0-or-later WITH GCC-exception-3.1",
            "its parts that the oldest system lacks, linked statically",
        ),
        from_pypi("nlohmann-json", "MIT", "compiled into packhorse/lib/libpackhorse.so"),
        from_pypi("cython", "Apache-2.0", "its run-time code, in the extension modules"),
    ]
    if given.cuda:
        nvcc = re.search(r"V([0-9.]+)", output("nvcc", "--version"))
        assert nvcc is not None
        components += [
            from_pypi("nvidia-cutlass", "BSD-3-Clause", "compiled into libpackhorse.so"),
            component(
                "cudart_static",
                nvcc[1],
                f"pkg:generic/nvidia-cuda-runtime@{nvcc[1]}",
                "LicenseRef-NVIDIA-CUDA-Toolkit-EULA",
                "the CUDA runtime, linked statically into libpackhorse.so",
            ),
        ]
    sbom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(components))}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "packhorse",
                "version": match[1],
                "purl": own,
                "licenses": [{"expression": "Apache-2.0"}],
            },
            "tools": {
                "components": [
                    {"type": "application", "name": name, "version": version(name)}
                    for name in ("auditwheel", "cmake", "scikit-build-core", "ziglang")
                ]
                + [{"type": "application", "name": "g++", "version": gcc}]
            },
        },
        "components": components,
        "dependencies": [
            {"ref": own, "dependsOn": [found["bom-ref"] for found in components]},
            *({"ref": found["bom-ref"]} for found in components),
        ],
    }
    json.dump(sbom, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
