"""Sessions that generate, on every device and in every dtype that it has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import packhorse
import pytest
from checkpoints import GOLDEN
from packhorse import GenerationSession, Sampling

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


class Held:
    """A mask that allows everything, and holds the engine's thread at its `tokens`-th token."""

    def __init__(self, tokens: int) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._left = tokens

    def fill(self, _words: memoryview) -> bool:
        return False

    def accept(self, _token: int) -> None:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            assert self.go_on.wait(10)


@contextmanager
def held(session: GenerationSession) -> Iterator[None]:
    """Holds the engine, so that requests which are submitted inside begin together: otherwise the
    first may have ended before the last is there, where the machine is busy."""
    mask = Held(tokens=1)
    holding = session.submit([1], Sampling(max_new_tokens=2, ignore_eos=True, mask=mask))
    assert mask.reached.wait(10)
    try:
        yield
    finally:
        mask.go_on.set()
    holding.result()
