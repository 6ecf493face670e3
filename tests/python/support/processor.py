"""Features of this processor that tests need."""

from __future__ import annotations

from pathlib import Path

import pytest


def needs_bfloat16() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    if "avx512_bf16" not in flags and "amx_bf16" not in flags:
        pytest.skip("this CPU has no bfloat16 arithmetic")
