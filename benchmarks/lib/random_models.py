"""Models of transformers with random weights: made on a device, saved for Packhorse, and where the
machine has it in memory that is shared, so that writing takes no time."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

transformers.utils.logging.disable_progress_bar()


def room() -> tempfile.TemporaryDirectory[str]:
    """A folder for models, which is deleted at the end of its `with`."""
    memory = Path("/dev/shm")
    free = os.statvfs(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None
    large = free is not None and free.f_bavail * free.f_frsize > 8 << 30
    return tempfile.TemporaryDirectory(dir=memory if large else None)


def make_model(kind: type[Any], config: Any, device: str, dtype: torch.dtype) -> Any:
    """Weights are those with which transformers begins training, from a fixed seed; rounded to
    `dtype` after they were made in float32."""
    torch.manual_seed(0)
    with torch.device(device):
        model = kind(config).eval()
    return model.to(dtype=dtype)


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def forget(device: str) -> None:
    """Frees what the last model left on the device."""
    gc.collect()
    torch.compiler.reset()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
