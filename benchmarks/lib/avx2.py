"""Holds programs to AVX2 on processors that have more, so that all engines compute by the same
instructions.

Most libraries take a variable of the environment, onnxruntime none. Where Linux can refuse the
instruction CPUID (the flag cpuid_fault of /proc/cpuinfo), a small library that is loaded before all
others answers it without AVX-512, AMX and AVX-VNNI, which holds every library alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("older_processor.cc")
LIBRARY = SOURCE.parents[2] / "build" / "benchmarks" / "older_processor.so"
VARIABLES = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # Packhorse, too
    "DNNL_MAX_CPU_ISA": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}


def environment() -> dict[str, str]:
    """Variables that hold a program to AVX2, to add to its environment."""
    if " cpuid_fault" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        print("CPUID cannot be refused here: engines are held by variables alone", file=sys.stderr)
        return dict(VARIABLES)
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CXX", "c++"), "-O2", "-shared", "-fPIC", str(SOURCE)]
    subprocess.run([*command, "-o", str(LIBRARY)], check=True)
    return VARIABLES | {"LD_PRELOAD": str(LIBRARY)}


def hold() -> None:
    """Starts this program anew with that environment, unless it has it."""
    if not VARIABLES.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | environment())
