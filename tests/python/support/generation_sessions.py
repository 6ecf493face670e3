"""Sessions that generate, on every device and in every dtype that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse import GenerationSession

LLAMA = GOLDEN / "generation" / "llama"
PAGE = 64  # tokens of a page of the cache
DTYPES = {"cpu": ("float32", "bfloat16", "int8"), "cuda:0": ("float16", "bfloat16")}
ON = [(name, dtype) for name in packhorse.available_devices() for dtype in DTYPES.get(name, ())]


def load(folder: Path = LLAMA, **options: Any) -> GenerationSession:
    """Skips the test where the device does not compute in the dtype asked for."""
    given: dict[str, Any] = {"kv_tokens": 64 * PAGE, "threads": 1, **options}
    try:
        session = packhorse.Session.load(folder, **given)
    except RuntimeError as error:
        pytest.skip(str(error))
    assert isinstance(session, GenerationSession)
    return session
