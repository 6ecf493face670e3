"""Keys and values in float8: what pages hold, as on the CPU; attention over them beside float64,
and the same bits however a text is cut into steps; sessions with such a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import pytest
import reference
import torch
from combinations import pairwise
from gpu_support import DEVICE, Precision
from packhorse import GenerationSession, Sampling, ops
from pages import PAGE, PagedSequences

Array = npt.NDArray[Any]
LLAMA = Path(__file__).parents[1] / "golden" / "generation" / "llama"
SLOPES = [0.5, 0.25, 0.0, 1.0, 0.02, 0.125]


@dataclass(frozen=True)
class Rounding:
    """A dtype of the device, by arrays on the host."""

    precision: Precision

    @property
    def name(self) -> str:
        return self.precision.name

    def round(self, x: Any) -> Array:
        rounded: Array = self.precision.round(x).float().cpu().numpy()
        return rounded


def sequences(precision: Precision, lengths: list[int], **options: Any) -> PagedSequences:
    given: dict[str, Any] = {"device": DEVICE, "precision": Rounding(precision), "float8": True}
    return PagedSequences(lengths, **{**given, **options})


@pytest.mark.parametrize("head_dim", [8, 40, 64, 72, 128, 256])
def test_pages_are_those_of_the_cpu(precision: Precision, head_dim: int) -> None:
    """Numbers have very different magnitudes, tokens begin pages, and heads are spoiled. Heads of
    the CPU are padded with zeros, which change nothing."""
    rng = np.random.default_rng(head_dim)
    heads, lens, counts = 3, [67, 1, 130], [5, 1, 130]
    tokens = sum(counts)
    rows = [
        rng.normal(0, 1, (tokens, heads, head_dim)) * np.logspace(-4, 3, head_dim) for _ in range(2)
    ]
    for x in rows:
        x *= rng.choice([1e-8, 1e-3, 1, 5], (tokens, heads, 1))
        x[3, 0] = 0
        x[7, :, -1] = [np.nan, np.inf, -np.inf]
    k, v = (Rounding(precision).round(x) for x in rows)
    table = [[4, 0, -1], [2, -1, -1], [5, 1, 3]]
    cu_seqlens = [0, *np.cumsum(counts).tolist()]
    found = []
    for device, dtype, columns in (
        ("cpu", "float32", -(-head_dim // 16) * 16),
        (DEVICE, precision.name, head_dim),
    ):
        keys, values = (np.full((7, heads, PAGE, columns), 2.5, np.float32) for _ in range(2))
        scales = [np.full((7, heads, PAGE), 0.25, np.float32) for _ in range(2)]
        padding = [(0, 0), (0, 0), (0, columns - head_dim)]
        ops.append_kv_cache(
            keys, values, *(np.pad(x, padding).reshape(tokens, -1) for x in (k, v)), cu_seqlens,
            table, lens, key_scales=scales[0], value_scales=scales[1], device=device, dtype=dtype,
        )  # fmt: skip
        found.append((keys[..., :head_dim], values[..., :head_dim], *scales))
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert np.isnan(found[1][2]).sum() == np.isnan(found[1][3]).sum() == 3


@pytest.mark.parametrize(("num_heads", "length"), [(1, 1), (200, 40)], ids=["few rows", "prompt"])
def test_every_number(precision: Precision, num_heads: int, length: int) -> None:
    """The first token of a text sees its own value alone: what comes out is what bytes mean."""
    magnitudes = [m / 8 * 2**-6 for m in range(8)]
    magnitudes += [(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)][:-1]
    numbers = np.zeros(256, np.float32)
    numbers[: 2 * len(magnitudes)] = [*magnitudes, *(-x for x in magnitudes)]
    text = sequences(precision, [length], num_heads=num_heads, num_kv_heads=num_heads, head_dim=256)
    text.v[0][0] = np.tile(numbers, num_heads)
    found = text.step({0: length})[0]
    np.testing.assert_array_equal(found[0], np.tile(numbers, num_heads))


@pairwise(
    head_dim=[8, 40, 64, 80, 104, 128, 200, 256],
    heads=[(2, 2), (6, 1), (9, 3)],
    given={
        "plain": {},
        "window": {"window": 70},
        "narrow window": {"window": 5, "scale": 0.3},
        "soft cap": {"soft_cap": 5.0},
        "all": {"alibi_slopes": SLOPES, "soft_cap": 30.0, "window": 300},
    },
)
def test_float64(
    precision: Precision, head_dim: int, heads: tuple[int, int], given: dict[str, Any]
) -> None:
    """Prompts behind a cache, and single tokens, over the numbers that the pages hold."""
    options, (num_heads, num_kv_heads) = dict(given), heads
    if "alibi_slopes" in options:
        options["alibi_slopes"] = np.resize(SLOPES, num_heads)
    texts = sequences(
        precision, [700, 1, 64, 513], num_heads=num_heads, num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )  # fmt: skip
    texts.skip(0, 90)
    texts.skip(3, 511)
    for takes in ({0: 600, 1: 1, 2: 63, 3: 1}, {0: 10, 2: 1, 3: 1}):
        before = list(texts.done)
        found = texts.step(takes, **options)
        window = options.get("window", -1)
        others = {name: value for name, value in options.items() if name != "window"}
        for b, count in takes.items():
            end = before[b] + count
            expected = reference.attention(
                texts.q[b][before[b] : end], texts.as_cached(texts.k[b][:end]),
                texts.as_cached(texts.v[b][:end]), [0, count], [0, end], num_heads, num_kv_heads,
                causal=True, window=(window, -1), **others,
            )  # fmt: skip
            # The weights of the values are rounded as well as the result.
            precision.check(found[b], torch.as_tensor(expected, device="cuda"), steps=2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("head_dim", [64, 72, 128, 256])
def test_bits(precision: Precision, head_dim: int, seed: int) -> None:
    """A text at once, and cut into steps beside others, in other pages; more than a chunk, and so
    many rows that both kernels have some."""
    shape: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": head_dim}
    length = 1500
    whole = sequences(precision, [length], **shape).step({0: length})[0]
    assert np.isfinite(whole).all()
    rng = np.random.default_rng(seed)
    texts = sequences(precision, [length, 1400, 70, 9], order=seed, **shape)
    texts.skip(1, 1300)
    while texts.done[0] < length:
        first = texts.done[0]
        takes = {0: min(int(rng.choice([1, 1, 2, 5, 16, 63, 64, 300, 700])), length - first)}
        for b in (1, 2, 3):
            left = texts.lengths[b] - texts.done[b]
            if left > 0 and rng.integers(2):
                takes[b] = min(int(rng.choice([0, 1, 1, 30])), left)
        takes = dict(sorted(takes.items(), key=lambda take: take[1]))
        found = texts.step(takes, at_once=bool(rng.integers(2)))[0]
        np.testing.assert_array_equal(found, whole[first : first + len(found)])


def test_bits_of_many_short_texts(precision: Precision) -> None:
    """In a step of many texts every warp has some of its own; those of a few share them."""
    lengths = [1 + 37 * b % 128 for b in range(100)]

    def step(of: range) -> dict[int, Array]:
        texts = sequences(precision, lengths, num_heads=12, num_kv_heads=12, head_dim=64)
        texts.step({b: length - 1 for b, length in enumerate(lengths)})
        found: dict[int, Array] = texts.step(dict.fromkeys(of, 1))
        return found

    whole, few = step(range(100)), range(0, 100, 19)
    for b, rows in step(few).items():
        np.testing.assert_array_equal(rows, whole[b])


def test_neighbours_do_not_leak(precision: Precision) -> None:
    """NaN reaches no neighbour, neither within a step nor from pages that held it before."""
    lengths, takes = [70, 30, 5], {0: 70, 1: 30, 2: 5}
    clean, dirty = (sequences(precision, lengths) for _ in range(2))
    for rows in (dirty.q, dirty.k, dirty.v):
        rows[1][:] = np.nan
    expected, found = clean.step(takes), dirty.step(takes)
    for b in (0, 2):
        np.testing.assert_array_equal(found[b], expected[b])
    assert not np.isfinite(found[1]).any()
    # A short text in the page of the spoiled one.
    later = sequences(precision, lengths)
    later.keys, later.values, later.scales = dirty.keys, dirty.values, dirty.scales
    later.table[2, 0] = dirty.table[1, 0]
    np.testing.assert_array_equal(later.step({2: 5})[2], expected[2])


@pytest.fixture(params=["float16", "bfloat16"])
def load(request: pytest.FixtureRequest) -> Iterator[Any]:
    sessions: list[GenerationSession] = []

    def make_session(**options: Any) -> GenerationSession:
        given: dict[str, Any] = {"kv_tokens": 200 * PAGE, "kv_cache_dtype": "float8", **options}
        session = packhorse.Session.load(LLAMA, DEVICE, request.param, **given)
        assert isinstance(session, GenerationSession)
        sessions.append(session)
        return session

    yield make_session
    for session in sessions:
        session.close()


PROMPTS = [
    [1 + (7 * i + length) % 60 for i in range(length)] for length in (1, 5, 63, 64, 65, 200, 300)
]


def test_bits_of_generation(load: Any) -> None:
    """Decoded or prefilled, in pieces or whole, alone or together, from the prefix cache or not."""
    sampling = Sampling(max_new_tokens=100, ignore_eos=True, logprobs=0)
    plain = load(prefix_cache=False)
    expected = [plain.generate([prompt], sampling)[0] for prompt in PROMPTS]

    def check(found: Any) -> None:
        for one, other in zip(found, expected, strict=True):
            assert replace(one, usage=other.usage) == other

    check(plain.generate(PROMPTS, sampling))
    for options in ({"max_tokens": 7}, {"max_tokens": 70, "kv_tokens": 12 * PAGE}):
        check(load(**options, prefix_cache=False).generate(PROMPTS, sampling))
    cached = load()
    for _ in range(2):
        check(cached.generate(PROMPTS, sampling))
    assert cached.stats["pages_cached"] > 0
    scoring = Sampling(max_new_tokens=1, ignore_eos=True, prompt_logprobs=0)
    for prompt, one in zip(PROMPTS, expected, strict=True):
        scored = cached.generate([prompt + one.ids], scoring)[0].prompt_logprobs
        assert scored.logprobs[-100:] == one.logprobs


def test_continuations_that_part(load: Any) -> None:
    """Copies of pages bring their scales along; drafts that are refused leave none."""
    drawn = Sampling(max_new_tokens=80, ignore_eos=True, logprobs=0, temperature=1.2, seed=3, n=3)
    alone = load(prefix_cache=False)
    expected = [alone.generate([prompt], drawn)[0] for prompt in PROMPTS]
    for some, others in zip(load().generate(PROMPTS, drawn), expected, strict=True):
        assert [(one.ids, one.logprobs) for one in some] == [
            (one.ids, one.logprobs) for one in others
        ]
    greedy = Sampling(max_new_tokens=120, ignore_eos=True, logprobs=0)
    plain = alone.generate(PROMPTS, greedy)
    drafted = load(draft="ngram", draft_tokens=6).generate(PROMPTS, greedy)
    for one, other in zip(drafted, plain, strict=True):
        assert (one.ids, one.logprobs) == (other.ids, other.logprobs)


def test_what_is_lost() -> None:
    """A session is nearer to the CPU's with such a cache, in float32, than without the cache."""
    with np.load(LLAMA / "golden.npz") as golden:
        ids = golden["prompts"][-150:].tolist()
    scoring = Sampling(max_new_tokens=0, prompt_logprobs=0)
    found = []
    for device, dtype, cache in (
        ("cpu", "float32", "float8"),
        (DEVICE, "float16", "float8"),
        (DEVICE, "float16", None),
    ):
        options: dict[str, Any] = {"kv_tokens": 256, "kv_cache_dtype": cache}
        with packhorse.Session.load(LLAMA, device, dtype, **options) as session:
            scored = session.generate([ids], scoring)[0].prompt_logprobs
        found.append(np.array(scored.logprobs))
    exact, mine, without = found
    assert np.abs(mine - exact).mean() < 0.5 * np.abs(without - exact).mean()


def test_what_a_token_takes(load: Any) -> None:
    session = load()
    plan = packhorse.plan_memory(
        LLAMA, DEVICE, session.dtype, kv_tokens=200 * PAGE, kv_cache_dtype="float8"
    )
    assert session.memory_plan == plan
    layers, kv_heads, head_dim = 2, 2, 8
    assert plan.bytes_per_token == layers * kv_heads * 2 * (head_dim + 4)  # the scale is float32
