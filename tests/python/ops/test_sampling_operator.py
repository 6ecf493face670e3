"""packhorse.ops.sample against closed-form distributions and transformers' logits processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from packhorse import ops
from sampling_cases import SETTINGS, VOCAB_SIZE, logits

pytestmark = pytest.mark.arm

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "sampling.json").read_text())
DRAWS = 8_000


def log_softmax(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x = np.asarray(x, np.float64)
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def for_rows(settings: dict[str, Any], rows: int) -> dict[str, Any]:
    lists = {"prompts", "generated", "logit_bias"}
    return {name: [value] * rows if name in lists else value for name, value in settings.items()}


def chi_square(tokens: npt.NDArray[np.int32], probabilities: npt.NDArray[np.float64]) -> float:
    """Distance of counts from what is expected, in standard deviations of the chi-square
    distribution."""
    likely = probabilities * len(tokens) >= 5
    counts = np.bincount(tokens, minlength=len(probabilities)).astype(np.float64)
    found = np.append(counts[likely], counts[~likely].sum())
    expected = np.append(probabilities[likely], probabilities[~likely].sum()) * len(tokens)
    found, expected = found[expected > 0], expected[expected > 0]
    degrees = max(len(expected) - 1, 1)
    return float((((found - expected) ** 2 / expected).sum() - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_have_the_probabilities_of_transformers(device: str, name: str) -> None:
    expected = np.array(GOLDEN["probabilities"][name])
    rows = np.repeat(logits()[None], DRAWS, 0)
    options = for_rows(SETTINGS[name], DRAWS)
    found = ops.sample(rows, seed=5, draw=np.arange(DRAWS), device=device, **options)
    assert set(np.unique(found.tokens)) <= set(np.flatnonzero(expected))
    assert abs(chi_square(found.tokens, expected)) < 4
    np.testing.assert_allclose(found.logprobs, log_softmax(logits())[found.tokens], atol=2e-6)


@pytest.mark.parametrize("by", ["seed", "stream", "draw"])
def test_each_number_gives_draws_of_its_own(device: str, by: str) -> None:
    rows = np.zeros((DRAWS, 16), np.float32)
    tokens = ops.sample(rows, temperature=1, device=device, **{by: np.arange(DRAWS)}).tokens
    assert abs(chi_square(tokens, np.full(16, 1 / 16))) < 4
    pairs = tokens[:-1] * 16 + tokens[1:]
    assert abs(chi_square(pairs, np.full(256, 1 / 256))) < 4


def test_a_row_does_not_depend_on_its_neighbours(device: str, rng: np.random.Generator) -> None:
    rows = rng.normal(0, 3, (40, 1000)).astype(np.float32)
    options: dict[str, Any] = {
        "temperature": rng.uniform(0, 2, 40).astype(np.float32),
        "top_k": rng.integers(0, 100, 40),
        "top_p": rng.uniform(0.1, 1, 40).astype(np.float32),
        "seed": rng.integers(0, 2**40, 40),
    }
    together = ops.sample(rows, device=device, top=5, **options)
    for i in (0, 1, 17, 39):
        one = {name: value[i] for name, value in options.items()}
        alone = ops.sample(rows[i : i + 1], device=device, top=5, **one)
        for a, b in zip(together, alone, strict=True):
            assert a[i].tobytes() == b[0].tobytes()


def philox(key: int, counter: int) -> int:
    """Philox4x32-10 (Salmon et al., SC 2011): the first 64 of its bits."""
    word = 0xFFFFFFFF
    x = [counter >> 32 * i & word for i in range(4)]
    k = [key & word, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [b >> 32 ^ x[1] ^ k[0], b & word, a >> 32 ^ x[3] ^ k[1], a & word]
        k = [k[0] + 0x9E3779B9 & word, k[1] + 0xBB67AE85 & word]
    return x[1] << 32 | x[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 50},
        {"top_p": 0.9},
        {"min_p": 0.02},
        {"top_k": 20_000, "top_p": 0.95, "min_p": 0.001},
    ],
    ids=str,
)
@pytest.mark.parametrize("draws", [1, 24, 300])
def test_tokens_of_a_large_vocabulary(
    device: str, rng: np.random.Generator, draws: int, options: dict[str, Any]
) -> None:
    size = 1_003 if draws == 300 else 50_257
    rows = rng.normal(0, 3, (draws, size)).astype(np.float32)
    found = ops.sample(
        rows, temperature=0.9, seed=2**33 + 7, draw=np.arange(draws), device=device, **options
    )
    for draw, row in enumerate(rows.astype(np.float64)):
        weights = np.exp((row - row.max()) / 0.9)
        order = np.argsort(-row, kind="stable")[: options.get("top_k", size)]
        sums = np.cumsum(weights[order])
        order = order[: np.searchsorted(sums, options.get("top_p", 1) * sums[-1]) + 1]
        kept = np.zeros(size)
        kept[order] = weights[order]
        kept[weights < options.get("min_p", 0)] = 0
        sums = np.cumsum(kept)
        drawn = np.searchsorted(sums, philox(2**33 + 7, draw) / 2**64 * sums[-1], side="right")
        assert found.tokens[draw] == drawn


@pytest.mark.parametrize("top_k", [0, 1, 40, 128, 129])
@pytest.mark.parametrize("top_p", [1, 0.7])
@pytest.mark.parametrize("size", [7, 5_003])
def test_a_mask_of_all_tokens_changes_no_draw(
    device: str, rng: np.random.Generator, size: int, top_p: float, top_k: int
) -> None:
    rows = rng.integers(-6, 7, (32, size)).astype(np.float32)  # many logits are equal
    rows[0] = -np.inf
    rows[1, 1:] = -np.inf
    rows[2, :3] = np.nan
    settings: dict[str, Any] = {
        "temperature": 0.8,
        "min_p": 0.01,
        "seed": np.arange(32),
        "device": device,
    }
    found = ops.sample(rows, top_k=top_k, top_p=top_p, **settings).tokens
    masked = ops.sample(
        rows, top_k=top_k, top_p=top_p, allowed=np.ones(rows.shape, np.bool_), **settings
    ).tokens
    np.testing.assert_array_equal(found, masked)
    assert found[0] == -1
    assert found[1] == 0


@pytest.mark.parametrize("size", [2, 31, 33, 1025, 50257])
def test_greedy_takes_the_first_largest(device: str, rng: np.random.Generator, size: int) -> None:
    rows = rng.integers(-3, 4, (5, size)).astype(np.float32)
    rows[0] = -np.inf
    rows[0, size // 2] = -1e30
    rows[1] = 0
    rows[2, size - 1] = np.inf
    rows[3, size // 2] = np.nan
    found = ops.sample(rows, device=device)
    expected = np.where(np.isnan(rows), -np.inf, rows).argmax(1)
    np.testing.assert_array_equal(found.tokens, expected)


def test_most_likely_tokens(device: str, rng: np.random.Generator) -> None:
    rows = rng.integers(-5, 6, (4, 3000)).astype(np.float32)
    found = ops.sample(rows, top=100, device=device)
    order = np.argsort(-rows, axis=1, kind="stable")[:, :100]
    np.testing.assert_array_equal(found.top_tokens, order)
    expected = np.take_along_axis(log_softmax(rows), order, 1)
    np.testing.assert_allclose(found.top_logprobs, expected, atol=2e-6)
    few = ops.sample(rows[:, :3], top=5, device=device)
    assert (few.top_tokens[:, 3:] == -1).all()
    assert (few.top_logprobs[:, 3:] == -np.inf).all()


def test_beams_are_told_processed_log_probabilities(device: str, rng: np.random.Generator) -> None:
    rows = rng.normal(0, 2, (2, 300)).astype(np.float32)
    allowed = rng.random((2, 300)) < 0.5
    seen = [[1, 2, 2], [7]]
    found = ops.sample(
        rows,
        beam=True,
        top=8,
        allowed=allowed,
        generated=seen,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        logit_bias=[{5: 4.0}, {}],
        device=device,
    )
    scores = log_softmax(rows)
    scores[0, 5] += 4
    for row, ids in zip(scores, seen, strict=True):
        for token in set(ids):
            row[token] = row[token] * 1.3 if row[token] < 0 else row[token] / 1.3
            row[token] -= 0.5 * ids.count(token)
    scores[~allowed] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :8]
    np.testing.assert_array_equal(found.top_tokens, order)
    np.testing.assert_allclose(
        found.top_logprobs, np.take_along_axis(scores, order, 1), rtol=2e-6, atol=2e-6
    )
    assert (found.tokens == -1).all()


@pytest.mark.parametrize("beam", [False, True])
def test_boosts_come_after_penalties(device: str, rng: np.random.Generator, beam: bool) -> None:
    rows = rng.normal(0, 2, (2, 70)).astype(np.float32)
    rows[:, 3] = -np.inf  # no boost raises it
    allowed = np.ones((2, 70), np.bool_)
    allowed[1, 6] = False
    found = ops.sample(
        rows,
        beam=beam,
        top=70,
        boost=[{5: 0.5, 9: 2.0}, {3: 4.0, 6: 100.0, 7: -0.5}],
        logit_bias=[{5: 1.0}, {}],
        generated=[[9], [7]],
        repetition_penalty=1.5,
        allowed=allowed,
        device=device,
    )
    scores = log_softmax(rows) if beam else rows.astype(np.float64)
    scores[0, 5] += 1
    for row, seen in zip(scores, (9, 7), strict=True):
        row[seen] = row[seen] * 1.5 if row[seen] < 0 else row[seen] / 1.5
    for row, token, boost in ((0, 5, 0.5), (0, 9, 2.0), (1, 7, -0.5)):
        scores[row, token] += abs(scores[row, token]) * boost
    scores[~allowed] = -np.inf
    if beam:
        best = -np.sort(-scores, axis=1)
        np.testing.assert_allclose(found.top_logprobs, best, rtol=2e-6, atol=2e-6)
    else:
        np.testing.assert_array_equal(found.tokens, scores.argmax(1))
        np.testing.assert_allclose(
            found.logprobs, log_softmax(rows)[[0, 1], found.tokens], atol=2e-6
        )


def test_a_flat_row_knows_its_mask_alone(device: str) -> None:
    rows = np.repeat(np.array([[9.0, 0.0, -9.0, 1.0, -np.inf]], np.float32), DRAWS, 0)
    allowed = np.repeat(np.array([[False, True, True, False, True]]), DRAWS, 0)
    options: dict[str, Any] = {"flat": True, "allowed": allowed, "device": device}
    draws = ops.sample(rows, temperature=0.3, draw=np.arange(DRAWS), **options)
    expected = np.array([0, 1, 1, 0, 1]) / 3
    assert abs(chi_square(draws.tokens, expected)) < 4
    assert (ops.sample(rows, **options).tokens == 1).all()
    told = ops.sample(rows, beam=True, top=3, boost=[{2: 3.0}] * DRAWS, **options)
    np.testing.assert_array_equal(told.top_tokens[0], [1, 2, 4])
    assert (told.top_logprobs == 0).all()


def test_penalties(device: str) -> None:
    rows = np.array([[2.0, -2.0, 1.9, 1.0]] * 3, np.float32)
    # Seen in the prompt alone: repetition counts, presence and frequency do not.
    found = ops.sample(rows, prompts=[[0]] * 3, presence_penalty=5.0, device=device)
    np.testing.assert_array_equal(found.tokens, [0, 0, 0])
    found = ops.sample(rows, prompts=[[0]] * 3, repetition_penalty=1.1, device=device)
    np.testing.assert_array_equal(found.tokens, [2, 2, 2])
    found = ops.sample(rows, generated=[[], [0], [0, 2, 2]], frequency_penalty=0.5, device=device)
    np.testing.assert_array_equal(found.tokens, [0, 2, 0])


@pytest.mark.parametrize("vocab_size", [31, 32, 64, 70])
def test_masks_that_allow_nothing_and_one_token(device: str, vocab_size: int) -> None:
    rows = np.ones((3, vocab_size), np.float32)
    allowed = np.zeros((3, vocab_size), np.bool_)
    allowed[1, -1] = allowed[2, 0] = True
    for temperature in (0.0, 1.0):
        found = ops.sample(rows, temperature=temperature, allowed=allowed, device=device)
        np.testing.assert_array_equal(found.tokens, [-1, vocab_size - 1, 0])


def test_ties_at_the_edge_go_to_lower_tokens(device: str) -> None:
    rows = np.zeros((500, 10), np.float32)
    options: dict[str, Any] = {"temperature": 1, "draw": np.arange(500), "device": device}
    assert set(ops.sample(rows, top_k=3, **options).tokens) == {0, 1, 2}
    assert set(ops.sample(rows, top_p=0.35, **options).tokens) == {0, 1, 2, 3}


def test_no_rows(device: str) -> None:
    found = ops.sample(np.zeros((0, VOCAB_SIZE), np.float32), top=3, device=device)
    assert [len(part) for part in found] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature is -1.0, expected 0 to"),
        ({"temperature": [1, 2, 3]}, r"temperature has shape \(3,\), expected one number or 2"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0.0"),
        ({"min_p": 1.5}, "min_p is 1.5, expected 0 to 1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top": 129}, "top is 129, expected 0 to 128"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.0"),
        ({"generated": [[61], []]}, "generated has a token outside of 0 to 60"),
        ({"generated": [[1]]}, "generated has 1 rows, logits has 2"),
        ({"logit_bias": [{-1: 1.0}, {}]}, "logit_bias has a token outside"),
        ({"allowed": np.ones((2, 60), bool)}, r"expected bool\[2, 61\]"),
    ],
)
def test_errors_name_what_does_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.sample(np.zeros((2, VOCAB_SIZE), np.float32), **options)
    with pytest.raises(ValueError, match="logits has shape"):
        ops.sample(np.zeros(5, np.float32))


@pytest.mark.parametrize("vocabulary", [1, 15, 64, 255, 256, 257, 300, 512, 1025, 4111])
@pytest.mark.parametrize("beam", [False, True], ids=["tokens", "beam"])
def test_most_likely_tokens_of_any_vocabulary(
    device: str, rng: np.random.Generator, vocabulary: int, beam: bool
) -> None:
    """The largest logits and the token of the largest, wherever in the row they lie; equal ones,
    infinities and, as -infinity, NaN among them."""
    rows = rng.normal(0, 3, (9, vocabulary)).astype(np.float32)
    rows[1] = np.round(rows[1])  # many are equal
    rows[2, -1] = 50
    rows[3, vocabulary // 2 + 1 :] = -np.inf
    rows[4, rng.integers(0, vocabulary, vocabulary // 3)] = np.nan
    rows[5] = np.where(rng.random(vocabulary) < 0.5, np.float32(0), np.float32(-0.0))
    rows[6] = -40 - np.arange(vocabulary) % 7
    rows[7], rows[7, 0] = -np.inf, 1
    most = 9
    found = ops.sample(rows, device=device, top=most, beam=beam)
    known = np.where(np.isnan(rows), -np.inf, rows)
    logprobs = log_softmax(known)
    order = np.argsort(-known, axis=1, kind="stable")[:, :most]
    count = order.shape[1]
    if not beam:
        assert found.top_tokens[:, :count].tolist() == order.tolist()
        finite = np.isfinite(known.max(1))
        assert found.tokens[finite].tolist() == order[finite, 0].tolist()
    top = np.take_along_axis(logprobs, found.top_tokens[:, :count].astype(np.int64), 1)
    expected = np.take_along_axis(logprobs, order, 1)
    numbers = ~np.isnan(rows).any(1)  # others have no log-probabilities
    told = found.top_logprobs[numbers, :count]
    np.testing.assert_allclose(told, expected[numbers], atol=1e-5)
    np.testing.assert_allclose(top[numbers], expected[numbers], atol=1e-5)
    assert (found.top_tokens[:, count:] == -1).all()
