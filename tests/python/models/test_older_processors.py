"""Values and bits under the instruction sets of older processors.

oneDNN takes other kernels there, which treat the rows of a batch otherwise, and so do we. oneDNN
reads its variable once, hence the subprocesses.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import packhorse
import pytest

TESTS = Path(__file__).parents[1]
SUITES = (
    *("invariance", "ops", "groups_operator", "attention", "int8", "pages", "pages_invariance"),
    "weights_16_bits",
)
# The first has the float kernels of every processor with AVX-512, which other tests meet already.
SUITES_OF = {
    "AVX512_CORE": ("invariance", "groups_operator", "int8", "weights_16_bits"),
    "AVX2": SUITES,
    "SSE41": SUITES,
}
# Attention to bfloat16 weights is that of float32 where only weights have 16 bits.
CHOSEN = "not cuda and not (bfloat16 and (attention or pages))"
# Names in Linux of features beyond each. A processor that has none of them runs the same kernels in
# other tests.
NEWER = {"AVX512_CORE": ["avx512_vnni"], "AVX2": ["avx512f", "avx_vnni"], "SSE41": ["avx2"]}

pytestmark = pytest.mark.skipif(
    "cpu" not in packhorse.available_devices()
    or platform.machine() != "x86_64"
    or "ONEDNN_MAX_CPU_ISA" in os.environ,
    reason="for the CPU backend on x86-64, unless an instruction set is chosen already",
)


def run(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("isa", SUITES_OF)
def test_suites(isa: str) -> None:
    features = Path("/proc/cpuinfo").read_text().split()
    if not any(feature in features for feature in NEWER[isa]):
        pytest.skip(f"this processor is no newer than {isa}")
    files = [str(next(TESTS.glob(f"*/test_{name}.py"))) for name in SUITES_OF[isa]]
    options = ("-q", "-x", "-p", "no:cacheprovider", "-k", CHOSEN)
    finished = run(isa, "-m", "pytest", *options, *files)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
    assert " passed" in finished.stdout
