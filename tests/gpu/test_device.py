"""Devices and dtypes that there are, and the messages where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import packhorse
import pytest
from packhorse import ops


@pytest.mark.skipif("cuda:0" not in packhorse.available_devices(), reason="no CUDA device")
def test_device() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is what results are compared with")
    devices = [name for name in packhorse.available_devices() if name.startswith("cuda:")]
    assert devices == [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    x, count = np.ones((8, 8)), len(devices)
    assert (ops.gemm(x, x, device="cuda", dtype="float16") == 8).all()
    for device, dtype, message in (
        (f"cuda:{count}", "float16", f"'cuda:{count}' does not exist: .*cuda:0"),
        ("cuda:0", "float32", "float32.*float16, bfloat16 or int8"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.gemm(x, x, device=device, dtype=dtype)
    with pytest.raises(ValueError, match="unknown device 'cuda:-1'"):
        ops.gemm(x, x, device="cuda:-1")


def test_no_device() -> None:
    """Importing the package needs no device, driver or CUDA backend, and the error says which is
    missing."""
    code = (
        "import numpy, packhorse; from packhorse import ops\n"
        "assert all(name == 'cpu' for name in packhorse.available_devices())\n"
        "try: ops.gemm(numpy.ones((8, 8)), numpy.ones((8, 8)), device='cuda', dtype='float16')\n"
        "except RuntimeError as error: print(error)"
    )
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(
        [sys.executable, "-c", code], env=hidden, capture_output=True, text=True, check=True
    )
    assert any(
        text in found.stdout
        for text in (
            "does not exist: the driver shows no device",
            "no NVIDIA driver on this machine; install one for CUDA",
            "no CUDA backend (build with PACKHORSE_CUDA=ON)",
        )
    ), found.stdout
