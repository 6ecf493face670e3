"""A session that generates allocates nothing on the device after it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packhorse
import pytest
from gpu_support import DEVICE
from packhorse import GenerationSession, Sampling
from test_gpu_session import driver_calls

GOLDEN = Path(__file__).parents[1] / "golden" / "generation"
PAGE = 64  # tokens of a page of the cache
DRAWN: dict[str, Any] = {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "seed": 3}
SAMPLINGS = (
    Sampling(max_new_tokens=100, ignore_eos=True, logprobs=3, temperature=0),
    Sampling(max_new_tokens=100, ignore_eos=True, repetition_penalty=1.2, **DRAWN),
    Sampling(max_new_tokens=100, ignore_eos=True, logit_bias={3: 0.5}, n=2, **DRAWN),
)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_steps_do_not_allocate(name: str, tmp_path: Path) -> None:
    sessions: list[GenerationSession] = []

    def load() -> None:
        # 20 pages: too few for all requests at once, so that some are preempted.
        session = packhorse.Session.load(
            GOLDEN / name, DEVICE, "bfloat16", kv_tokens=20 * PAGE, max_tokens=64, max_sequences=8
        )
        assert isinstance(session, GenerationSession)
        sessions.append(session)

    loading = driver_calls(load, tmp_path / "load.json")
    if not loading["cudaMalloc"]:
        pytest.skip(f"the profiler does not see what a load calls: {dict(loading)}")
    (session,) = sessions
    prompts = [[1 + i % 50 for i in range(length)] for length in (1, 63, 64, 65, 150, 200)]

    def work() -> None:
        running = [session.submit(ids, sampling) for ids in prompts for sampling in SAMPLINGS]
        for request in running:
            request.wait()

    calls = driver_calls(work, tmp_path / "steps.json")
    assert session.stats["steps"] > 100
    memory = {name for name in calls if "Malloc" in name or "Free" in name or "Alloc" in name}
    assert not memory, dict(calls)
    session.close()
