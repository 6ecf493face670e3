"""A model of speech beside transformers: logits and tokens; sources of audio in the engine."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse import GenerationSession, Sampling, Session
from speech_cases import (
    ARRAYS,
    FRAMES,
    MODEL,
    PROMPTS,
    RULES,
    TARGETS,
    check_order_of_times,
    log_softmax,
    run,
    windows,
)


def load(**options: Any) -> GenerationSession:
    return GenerationSession.load(MODEL, **{"dtype": "float32", "kv_tokens": 8192, **options})


def test_logits_and_greedy_tokens() -> None:
    with load() as session:
        assert (session.frame_features, session.max_source_tokens) == (6, 50)
        count = 128  # most that a request tells
        scoring = Sampling(max_new_tokens=1, logprobs=count, prompt_logprobs=count, ignore_eos=True)
        expected = np.split(ARRAYS["logits"], ARRAYS["target_cu"][1:-1])
        requests = [
            session.submit_features(target, frames, scoring)
            for frames, target in zip(FRAMES, TARGETS, strict=True)
        ]
        for request, logits in zip(requests, expected, strict=True):
            found = request.result()
            rows = [*found.prompt_logprobs.top, *found.top_logprobs]
            for row, wanted in zip(rows, log_softmax(logits), strict=True):
                ids = [token for token, _ in row]
                np.testing.assert_allclose([value for _, value in row], wanted[ids], atol=5e-4)
        for frames, target, ids in zip(
            FRAMES, TARGETS, np.split(ARRAYS["greedy"], ARRAYS["greedy_cu"][1:-1]), strict=True
        ):
            greedy = Sampling(max_new_tokens=len(ids), ignore_eos=True)
            assert run(session, target, frames, greedy)[0].ids == ids.tolist()
        assert session.stats["pages_used"] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_alone_and_together(dtype: str) -> None:
    """Windows of any even length have the bits of a run alone, and equal ones share the encoder."""
    sampling = Sampling(
        max_new_tokens=12, logprobs=0, ignore_eos=True, temperature=0.7, seed=1, n=2
    )
    with load(dtype=dtype, threads=2, max_tokens=120, max_sequences=8) as session:
        requests = [
            session.submit_features(prompt, window, sampling)
            for prompt, window in zip(PROMPTS, windows(), strict=True)
        ]
        together = [[(one.ids, one.logprobs) for one in request.results()] for request in requests]
        assert session.stats["prefix_hit_tokens"] >= 50
    with load(dtype=dtype, prefix_cache=False) as session:
        for prompt, window, wanted in zip(PROMPTS, windows(), together, strict=True):
            found = run(session, prompt, window, sampling)
            assert [(one.ids, one.logprobs) for one in found] == wanted


def test_cache_of_int8() -> None:
    """Keys and values have 16 bits beside weights of fewer, and what is asked for where it is."""
    sizes = {}
    for dtype in ("float32", "int8"):
        for cache in (None, "float8"):
            with load(dtype=dtype, kv_cache_dtype=cache) as session:
                sizes[dtype, cache] = session.memory_plan.bytes_per_token
    assert sizes["float32", None] == 2 * sizes["int8", None]
    assert sizes["float32", "float8"] == sizes["int8", "float8"] < sizes["int8", None]


class Gate:
    """A mask that restricts nothing, for which the engine waits until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def fill(self, words: memoryview) -> bool:
        self.reached.set()
        return not self.open.wait(60)

    def accept(self, token: int) -> None:
        pass

    def fork(self) -> Gate:
        return self


def test_windows_are_encoded_together() -> None:
    """Windows that wait beside a text that goes on start in one step, as many as max_tokens hold,
    although they are more than the budget of prompts."""
    gate, one = Gate(), Sampling(max_new_tokens=1, ignore_eos=True)
    with load(max_tokens=400) as session:
        held = Sampling(max_new_tokens=2, ignore_eos=True, mask=gate)
        requests = [session.submit_features([257], FRAMES[0], held)]
        assert gate.reached.wait(60)
        before = session.stats["steps"]
        requests += [session.submit_features([257], FRAMES[1] + i, one) for i in range(8)]
        gate.open.set()
        for request in requests:
            assert request.result().ids
        assert session.stats["steps"] - before <= 2


@pytest.mark.parametrize("window", [0, 1, 2])
def test_order_of_times(window: int) -> None:
    with load() as session:
        check_order_of_times(session, FRAMES[window])


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((3, 6)), "18 numbers in frames of 6, expected frames of 6 and an even number"),
        (np.zeros((4, 5)), "frames of 5, expected frames of 6"),
        (np.zeros((0, 6)), "expected frames of 6 and an even number of them, 2 at least"),
        (np.zeros((102, 6)), "102 frames, expected at most 100"),
        (np.full((2, 6), np.inf), "frame 0 of the source has inf at 0, expected finite numbers"),
        (np.zeros(6), r"features has the shape \(6,\)"),
    ],
)
def test_refused_frames(frames: np.ndarray, message: str) -> None:
    with load() as session:
        with pytest.raises(ValueError, match=message):
            session.submit_features([257], frames)
        with pytest.raises(ValueError, match="this model's encoder reads frames of audio"):
            session.submit([257], source=[1, 2])
        with pytest.raises(ValueError, match="reads frames of audio"):
            session.submit([257])
        assert run(session, [257], FRAMES[0], Sampling(max_new_tokens=1))[0].ids


def test_models_of_text_take_no_audio() -> None:
    with Session.load(GOLDEN / "text_to_text" / "t5", kv_tokens=1024) as session:
        with pytest.raises(ValueError, match="this model's encoder reads no audio"):
            session.submit_features([0], np.zeros((2, 6)))
        with pytest.raises(ValueError, match="timestamps is there, expected none"):
            session.submit([0], Sampling(timestamps=RULES), source=[5, 6])
