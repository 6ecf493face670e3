"""Features of this processor that tests need."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# Instruction sets without products of bfloat16, as ONEDNN_MAX_CPU_ISA calls them.
_WITHOUT = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")


def multiplies_bfloat16() -> bool:
    """True where a session of bfloat16 computes in it. Elsewhere only its weights have 16 bits, and
    are converted to float32 when they are read."""
    if platform.machine() != "x86_64":
        return True
    flags = Path("/proc/cpuinfo").read_text().split()
    return "avx512_bf16" in flags and os.environ.get("ONEDNN_MAX_CPU_ISA") not in _WITHOUT


def widened_dtypes() -> list[str]:
    """The dtypes of which a session on the CPU has weights, and float32 for the rest."""
    return ["float16"] if multiplies_bfloat16() else ["bfloat16", "float16"]
