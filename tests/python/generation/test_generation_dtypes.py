"""A real language model in every dtype of the CPU: decode gives the bits of prefill, alone and
among others; 16 bits, int8 and the quantised weights of its file stay near float32. Reference: the
same session's prefill for bits, and float32, which test_gguf.py and test_generation_models.py
compare with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import pytest
from packhorse import GenerationSession, Sampling

Scores = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]

FLOAT8_CACHE = "float8 cache"
# Mean and largest difference of the log-probabilities of real text to those of float32, and the
# share of places at which another token is the most probable one.
BOUNDS = {
    "bfloat16": (0.05, 0.3, 0.06),
    "float16": (0.005, 0.03, 0.02),
    "int8": (0.02, 0.15, 0.04),
    "stored": (0.08, 0.4, 0.06),
    FLOAT8_CACHE: (0.08, 0.6, 0.06),
}
TEXT = """The mules carried salt and cloth across the mountains every autumn. In the evening the \
drivers made a fire, cooked beans and told stories about the villages on the other side. When the \
snow came early, they waited in a stone house near the pass until the path was open again. A good \
mule knew the way by itself, and an old driver knew which mule to trust."""


def load(path: Path, dtype: str) -> GenerationSession:
    """Loads a session. dtype: as of `Session.load`, or "float8 cache" for float32 with one."""
    options: dict[str, Any] = {"dtype": dtype}
    if dtype == FLOAT8_CACHE:
        options = {"dtype": "float32", "kv_cache_dtype": "float8"}
    session = packhorse.Session.load(
        path, kv_tokens=4096, threads=2, max_sequences=20, prefix_cache=False, **options
    )
    assert isinstance(session, GenerationSession)
    return session


@pytest.fixture(scope="module")
def text(smollm2: Path) -> list[int]:
    with packhorse.TextModel.load(smollm2, kv_tokens=64) as model:
        return [int(i) for i in model.tokenizer.backend.encode(TEXT).ids]


def score(path: Path, text: list[int], dtype: str) -> Scores:
    """The log-probability of each token of a text, and the most probable token at its place."""
    with load(path, dtype) as session:
        sampling = Sampling(max_new_tokens=1, prompt_logprobs=1)
        found = session.generate([text], sampling)[0].prompt_logprobs
    assert found is not None
    return np.array(found.logprobs), np.array([top[0][0] for top in found.top])


@pytest.fixture(scope="module")
def float32_scores(smollm2: Path, text: list[int]) -> Scores:
    return score(smollm2, text, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "stored"])
def test_decode_gives_the_bits_of_prefill(smollm2: Path, text: list[int], dtype: str) -> None:
    new = 6
    sampling = Sampling(max_new_tokens=new, ignore_eos=True, logprobs=0)
    with load(smollm2, dtype) as session:
        # 1, 2, 5, 8, 13 and 17 rows in a step: as many as a kernel of few rows takes, and more.
        alone = session.generate([text[:40]], sampling)[0]
        for others in (1, 4, 7, 12, 16):
            prompts = [text[:40]] + [text[i : i + 2 + i % 7] for i in range(1, others + 1)]
            assert session.generate(prompts, sampling)[0] == alone
        scoring = Sampling(max_new_tokens=1, ignore_eos=True, prompt_logprobs=0)
        whole = session.generate([text[:40] + alone.ids], scoring)[0].prompt_logprobs
        assert whole is not None
        assert whole.logprobs[-new:] == alone.logprobs


@pytest.mark.parametrize("dtype", BOUNDS)
def test_near_float32(smollm2: Path, text: list[int], float32_scores: Scores, dtype: str) -> None:
    logprobs, most_probable = score(smollm2, text, dtype)
    difference = np.abs(logprobs - float32_scores[0])
    mean, largest, others = BOUNDS[dtype]
    assert difference.mean() <= mean
    assert difference.max() <= largest
    assert np.not_equal(most_probable, float32_scores[1]).mean() <= others


def test_int8_quantises_the_head_of_a_model_that_generates(smollm2: Path) -> None:
    """The matrix of the head takes 10.25 bits a value; a model that embeds keeps it in float32."""
    generating = packhorse.plan_memory(smollm2, dtype="int8", kv_tokens=64)
    scoring = packhorse.plan_memory(smollm2, dtype="int8", kv_tokens=0, max_predictions=1)
    saved = scoring.weights.bytes - generating.weights.bytes
    assert saved == pytest.approx((32 - 10.25) / 8 * 49152 * 576, rel=0.02)
