"""A model of speech beside transformers: logits and tokens; sources of audio in the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse import GenerationSession, Sampling, Session
from packhorse.generation import TimestampRules

MODEL = GOLDEN / "speech" / "whisper"
ARRAYS = dict(np.load(MODEL / "golden.npz"))
FRAMES = ARRAYS["frames"]
TARGETS = np.split(ARRAYS["target_ids"], ARRAYS["target_cu"][1:-1])
END = 256  # <|endoftext|>


def load(**options: Any) -> GenerationSession:
    return GenerationSession.load(MODEL, **{"dtype": "float32", "kv_tokens": 8192, **options})


def run(session: GenerationSession, prompt: Any, frames: Any, sampling: Sampling) -> Any:
    return session.submit_features(prompt, frames, sampling).results()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    largest = logits.max(-1, keepdims=True)
    return logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))


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
    rng = np.random.default_rng(3)
    windows = [rng.normal(0, 1, (size, 6)).astype(np.float32) for size in (100, 2, 64, 98, 100)]
    windows.append(windows[0])
    sampling = Sampling(
        max_new_tokens=12, logprobs=0, ignore_eos=True, temperature=0.7, seed=1, n=2
    )
    prompts = [[257], [257, 258, 3], [264, *range(60), 257][:40], [257], [257, 5], [257]]
    with load(dtype=dtype, threads=2, max_tokens=120, max_sequences=8) as session:
        requests = [
            session.submit_features(prompt, window, sampling)
            for prompt, window in zip(prompts, windows, strict=True)
        ]
        together = [[(one.ids, one.logprobs) for one in request.results()] for request in requests]
        assert session.stats["prefix_hit_tokens"] >= 50
    with load(dtype=dtype, prefix_cache=False) as session:
        for prompt, window, wanted in zip(prompts, windows, together, strict=True):
            found = run(session, prompt, window, sampling)
            assert [(one.ids, one.logprobs) for one in found] == wanted


def allowed(new: list[int], rules: TimestampRules, size: int) -> np.ndarray:
    """Tokens that may follow, by the rules in words."""
    may = np.ones(size, bool)
    begin = rules.begin
    if rules.no_timestamps is not None:
        may[rules.no_timestamps] = False
    if not new:
        may[:begin] = False
        if rules.max_initial is not None:
            may[begin + rules.max_initial + 1 :] = False
        return may
    last = new[-1] >= begin
    if last and (len(new) < 2 or new[-2] >= begin):
        may[begin:] = False
    elif last:
        may[: rules.end_of_text] = False
        may[begin : new[-1]] = False
    else:
        said = [token for token in new if token >= begin]
        if said:
            may[begin : said[-1] + 1] = False
    return may


def filtered(
    logits: np.ndarray, new: list[int], rules: TimestampRules, banned: list[int]
) -> np.ndarray:
    """Log-probabilities of what the rules leave, in float64."""
    may = allowed(new, rules, logits.size)
    may[banned] = False
    left = np.where(may, logits.astype(np.float64), -np.inf)
    times, texts = left[rules.begin :], left[: rules.begin]
    largest = times.max()
    if np.isfinite(largest) and largest + np.log(np.exp(times - largest).sum()) > texts.max():
        left[: rules.begin] = -np.inf
    return log_softmax(left[None])[0]


RULES = TimestampRules(begin=267, end_of_text=END, no_timestamps=266, max_initial=10)
BANNED = [3, 70, 257, 261, 262, 263, 264, 265]


@pytest.mark.parametrize("window", [0, 1, 2])
def test_order_of_times(window: int) -> None:
    """Each token is the best that the rules leave of the model's own logits, and its
    log-probability that of what they leave."""
    prompt, frames = [257, 258, 262], FRAMES[window]
    with load() as session:
        size = session.vocab_size
        settings = {"max_new_tokens": 20, "suppress_tokens": BANNED, "begin_suppress_tokens": [END]}
        sampling = Sampling(**settings, timestamps=RULES, filtered_logprobs=True, logprobs=0)
        found = run(session, prompt, frames, sampling)[0]
        new: list[int] = []
        for token, logprob in zip(found.ids, found.logprobs, strict=True):
            of_ids = np.full(size, -np.inf)
            top = Sampling(max_new_tokens=1, logprobs=128, ignore_eos=True)
            row = run(session, [*prompt, *new], frames, top)[0].top_logprobs[0]
            for one, value in row:
                of_ids[one] = value
            banned = BANNED + ([END] if not new else [])
            wanted = filtered(of_ids, new, RULES, banned)
            if np.isfinite(wanted[token]):
                assert token == int(wanted.argmax())
            assert allowed(new, RULES, size)[token]
            new.append(token)
            assert logprob <= 1e-6
    times = [token for token in new if token >= RULES.begin]
    assert times == sorted(times)
    assert new[0] <= RULES.begin + 10


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
