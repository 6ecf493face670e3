"""The tiny model of speech: what transformers makes of it, audios, and the rules of times as they
are in words."""

from __future__ import annotations

from typing import Any

import numpy as np
from checkpoints import GOLDEN
from packhorse import GenerationSession, Sampling
from packhorse.generation import TimestampRules

MODEL = GOLDEN / "speech" / "whisper"
ARRAYS = dict(np.load(MODEL / "golden.npz"))
FRAMES = ARRAYS["frames"]
TARGETS = np.split(ARRAYS["target_ids"], ARRAYS["target_cu"][1:-1])
END = 256  # <|endoftext|>
RULES = TimestampRules(begin=267, end_of_text=END, no_timestamps=266, max_initial=10)
BANNED = [3, *range(70, 256), 257, 261, 262, 263, 264, 265]
PROMPTS = [[257], [257, 258, 3], [264, *range(60), 257][:40], [257], [257, 5], [257]]


def sound(seconds: float, seed: int) -> np.ndarray:
    """Tones that come and go in noise, and a silence."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(16000 * seconds)) / 16000
    heard = rng.normal(0, 0.01, time.size)
    for _ in range(4):
        low, begin = rng.uniform(100, 3000), rng.uniform(0, max(0.1, seconds))
        heard += np.sin(2 * np.pi * low * time) * (np.abs(time - begin) < 0.7)
    heard[(time > 0.6 * seconds) & (time < 0.7 * seconds)] = 0
    return heard.astype(np.float32)


def windows() -> list[np.ndarray]:
    """Frames of windows of several lengths, two of which are equal: one for each of PROMPTS."""
    rng = np.random.default_rng(3)
    made = [rng.normal(0, 1, (size, 6)).astype(np.float32) for size in (100, 2, 64, 98, 100)]
    return [*made, made[0]]


def run(session: GenerationSession, prompt: Any, frames: Any, sampling: Sampling) -> Any:
    return session.submit_features(prompt, frames, sampling).results()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    largest = logits.max(-1, keepdims=True)
    shifted = logits - largest
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


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


def rows_of(session: GenerationSession, prompt: Any, frames: Any, settings: Any) -> np.ndarray:
    """Log-probabilities of the next token, [vocabulary]; -infinity of those beyond 128."""
    row = np.full(session.vocab_size, -np.inf)
    top = Sampling(max_new_tokens=1, logprobs=128, ignore_eos=True, **settings)
    for token, value in run(session, prompt, frames, top)[0].top_logprobs[0]:
        row[token] = value
    return row


def check_order_of_times(session: GenerationSession, frames: np.ndarray) -> None:
    """Each token is the best that the rules leave of the model's own logits, and its
    log-probability that of what they leave. So many tokens are banned that a row tells all others.
    """
    prompt = [257, 258, 262]
    always: dict[str, Any] = {"suppress_tokens": BANNED, "filtered_logprobs": True}
    sampling = Sampling(
        max_new_tokens=20, begin_suppress_tokens=[END], timestamps=RULES, logprobs=0, **always
    )
    found = run(session, prompt, frames, sampling)[0]
    new: list[int] = []
    for token, logprob in zip(found.ids, found.logprobs, strict=True):
        row = rows_of(session, [*prompt, *new], frames, always)
        np.testing.assert_allclose(np.exp(row).sum(), 1, rtol=1e-4)
        wanted = filtered(row, new, RULES, BANNED + ([END] if not new else []))
        assert token == int(wanted.argmax())
        assert abs(logprob - wanted[token]) < 1e-3
        new.append(token)
    times = [token for token in new if token >= RULES.begin]
    assert times == sorted(times)
    assert new[0] <= RULES.begin + 10
