"""Compressed convolutional attention and mixtures of experts of the sizes that tensor cores take:
the operator with every set of kernels, and the bits of models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference_cca
import torch
from cases import offsets
from gpu_support import DEVICE, using_kernels
from models import random_sequences, random_tensors, tiny_spec, write_model
from packhorse import GenerationSession, Sampling, Session, ops
from reference import bfloat16

PAGE = 64
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 128

SPEC: dict[str, Any] = {
    "hidden_size": 64,
    "num_layers": 3,
    "num_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_seqlen": 2048,
    "positions": {"kind": "none"},
    "norm": {"kind": "rms", "placement": "pre", "eps": 1e-5, "embeddings": False},
    "residual_scales": True,
    "attention": {
        "kind": "compressed",
        "depthwise_width": 2,
        "grouped_width": 2,
        "mask": "causal",
        "rope": {"theta": 1e4, "dims": HEAD_DIM // 2},
    },
    "ffn": {"kind": "mixture", "activation": "silu", "experts": 6, "router_size": 16},
}


# (num_heads, num_kv_heads, head_dim, columns that are rotated)
SIZES = [(4, 2, 128, 64), (8, 2, 128, 128), (9, 1, 128, 20), (2, 2, 64, 32), (10, 1, 64, 64)]
BATCHES = [
    [700, 1, 2, 33, 0, 260, 64, 31],
    [1] * 150,
    [2, 0, 1, 3] * 60,
    [4096, 0, 0, 1],
    [63, 64, 65, 127, 128, 129, 0, 191],
    [129],
    [20000, 1, 9, 333],
]


def make(
    lengths: list[int], seed: int = 0, sizes: tuple[int, ...] = (HEADS, KV_HEADS, HEAD_DIM, 64)
) -> dict[str, Any]:
    heads, kv_heads, head_dim, dims = sizes
    rng = np.random.default_rng(seed)
    columns = (heads + kv_heads) * head_dim
    cu_seqlens = offsets(lengths)

    def normal(scale: float, *shape: int) -> Any:
        return bfloat16(rng.normal(0, scale, shape))

    return {
        "latents": normal(1, cu_seqlens[-1], columns + kv_heads * head_dim),
        "cu_seqlens": cu_seqlens,
        "depthwise": (normal(0.7, columns, 2), normal(0.5, columns)),
        "grouped": (normal((2 * head_dim) ** -0.5, columns, head_dim, 2), normal(0.5, columns)),
        "temperature": rng.uniform(0.5, 2, kv_heads).astype(np.float32),
        "num_heads": heads,
        "frequencies": 50.0 ** -(np.arange(0, dims, 2) / dims),
        "first_values": normal(1, kv_heads * head_dim),
    }


def by(kernels: str, given: dict[str, Any], dtype: Any) -> Any:
    with using_kernels(kernels):
        return ops.cca(**given, device=DEVICE, dtype=dtype)


hopper = pytest.mark.skipif(
    torch.cuda.get_device_capability(0) != (9, 0), reason="needs compute capability 9.0"
)


@hopper
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lengths", BATCHES, ids=[f"{sum(x)}_{len(x)}" for x in BATCHES])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_bits_of_hopper_and_portable(
    sizes: tuple[int, ...], lengths: list[int], dtype: Any
) -> None:
    """The kernels by wgmma and by mma.sync sum the same products in the same order."""
    given = make(lengths, sum(lengths), sizes)
    found = by("sm90", given, dtype)
    np.testing.assert_array_equal(found, by("portable", given, dtype))
    if sum(lengths) < 2000:
        expected = reference_cca.cca(**given)
        assert np.linalg.norm(found - expected) < 4e-3 * np.linalg.norm(expected)


@hopper
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_neighbours_of_nan_on_hopper(dtype: Any) -> None:
    given = make([70, 5, 190, 1, 30])
    clean = by("sm90", given, dtype)
    given["latents"][70:75] = np.nan
    found = by("sm90", given, dtype)
    others = np.r_[0:70, 75:296]
    np.testing.assert_array_equal(found[others], clean[others])
    assert np.isnan(found[70:75]).any(1).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[2], SIZES[3]], ids=str)
def test_steps_of_any_size(kernels: str, sizes: tuple[int, ...], dtype: Any) -> None:
    """Steps of many rows and of few, over pages, give the bits of the whole sequences."""
    rng = np.random.default_rng(7)
    lengths = [900, 64, 1, 333]
    given = make(lengths, 3, sizes)
    on = {"device": DEVICE, "dtype": dtype}
    whole = np.split(ops.cca(**given, **on), given["cu_seqlens"][1:-1])
    latents = np.split(given["latents"], given["cu_seqlens"][1:-1])
    table = rng.permutation(4 * 15).reshape(4, 15)
    rows = ops.LatentState.empty(4 * 15, 2, *sizes[:3])
    rows[:] = np.nan
    done, found = [0] * 4, [[] for _ in range(4)]
    while done != lengths:
        takes = {
            b: min(n - done[b], int(rng.choice([1, 2, 63, 64, 65, 130, 300])))
            for b, n in enumerate(lengths)
            if done[b] < n and rng.random() < 0.8
        }
        if not takes:
            continue
        ends = {b: done[b] + n for b, n in takes.items()}
        step = given | {
            "latents": np.concatenate([latents[b][done[b] : end] for b, end in ends.items()]),
            "cu_seqlens": offsets(list(takes.values())),
            "position_ids": np.concatenate([np.arange(done[b], end) for b, end in ends.items()]),
            "state": ops.LatentState(rows, table[list(takes)], list(ends.values())),
        }
        out = ops.cca(**step, **on)
        for b, part in zip(takes, np.split(out, step["cu_seqlens"][1:-1]), strict=True):
            found[b].append(part)
            done[b] = ends[b]
    for parts, expected in zip(found, whole, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_many_rows(kernels: str) -> None:
    """Every path of the kernels: few rows and many, in steps, with neighbours and alone."""
    lengths = [700, 1, 2, 33, 0, 260, 64, 31]
    given = make(lengths)
    on = {"device": DEVICE, "dtype": "bfloat16"}
    whole = ops.cca(**given, **on)
    expected = reference_cca.cca(**given)
    error = np.linalg.norm(whole - expected) / np.linalg.norm(expected)
    assert error < 4e-3
    np.testing.assert_allclose(whole, expected, rtol=2**-6, atol=2**-5)
    for begin, end in zip(given["cu_seqlens"][:-1], given["cu_seqlens"][1:], strict=True):
        alone = given | {"latents": given["latents"][begin:end], "cu_seqlens": [0, end - begin]}
        np.testing.assert_array_equal(ops.cca(**alone, **on), whole[begin:end])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_spec(**SPEC)
    return write_model(tmp_path_factory.mktemp("encoder"), spec, random_tensors(spec))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bits_of_an_encoder(kernels: str, folder: Path, dtype: Any) -> None:
    session = Session.load(folder, DEVICE, dtype, max_tokens=2048, max_sequences=32)
    sequences = random_sequences([3, 400, 1, 0, 70, 2, 64, 65, 900])
    together = session.run(sequences).hidden
    assert np.isfinite(together).all()
    ends = np.cumsum([len(one) for one in sequences])[:-1]
    for sequence, expected in zip(sequences, np.split(together, ends), strict=True):
        np.testing.assert_array_equal(session.run([sequence]).hidden, expected)
    np.testing.assert_array_equal(
        session.run(sequences[::-1]).hidden[: len(sequences[-1])], together[-len(sequences[-1]) :]
    )
    session.close()


def test_an_encoder_beside_the_cpu(kernels: str, folder: Path) -> None:
    sequences = random_sequences([130, 2, 40])
    results = [
        Session.load(folder, device, dtype, max_tokens=512, max_sequences=8).run(sequences).hidden
        for device, dtype in ((DEVICE, "float16"), ("cpu", "float32"))
    ]
    errors = np.linalg.norm(results[0] - results[1], axis=1) / np.linalg.norm(results[1], axis=1)
    # Rounding makes few rows choose another expert.
    assert (errors < 0.02).mean() >= 0.9


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tiny_spec(**SPEC, vocab_size=80, heads={"lm": {"tied": True}})
    return write_model(tmp_path_factory.mktemp("decoder"), spec, random_tensors(spec))


@pytest.fixture(params=["float16", "bfloat16"])
def load(request: pytest.FixtureRequest, kernels: str, generating: Path) -> Iterator[Any]:
    sessions: list[GenerationSession] = []

    def make_session(**options: Any) -> GenerationSession:
        given: dict[str, Any] = {"kv_tokens": 100 * PAGE, "max_tokens": 256, **options}
        session = packhorse.Session.load(generating, DEVICE, request.param, **given)
        assert isinstance(session, GenerationSession)
        sessions.append(session)
        return session

    yield make_session
    for session in sessions:
        session.close()


def test_bits_of_generation(load: Any) -> None:
    """Decoded or prefilled, in chunks or whole, alone or together, from the prefix cache or not."""
    prompts = [
        [1 + (7 * i + length) % 60 for i in range(length)]
        for length in (1, 5, 63, 64, 65, 200, 400)
    ]
    sampling = Sampling(max_new_tokens=100, ignore_eos=True, logprobs=0)
    scoring = Sampling(max_new_tokens=1, ignore_eos=True, prompt_logprobs=0)
    plain = load(prefix_cache=False)
    expected = [plain.generate([prompt], sampling)[0] for prompt in prompts]

    def check(found: Any) -> None:
        for one, other in zip(found, expected, strict=True):
            assert replace(one, usage=other.usage) == other

    for options in ({}, {"max_tokens": 7}, {"max_tokens": 70, "kv_tokens": 16 * PAGE}):
        check(load(**options, prefix_cache=False).generate(prompts, sampling))
    cached = load()
    for _ in range(2):
        check(cached.generate(prompts, sampling))
    assert cached.stats["pages_cached"] > 0
    for session in (plain, cached, load(max_tokens=9, prefix_cache=False)):
        for prompt, one in zip(prompts, expected, strict=True):
            scored = session.generate([prompt + one.ids], scoring)[0].prompt_logprobs
            assert scored is not None
            assert scored.logprobs[-100:] == one.logprobs


def test_drafts(load: Any) -> None:
    prompts = [[(3 * i) % 11 + 1 for i in range(length)] for length in (20, 90, 130)]
    sampling = Sampling(max_new_tokens=120, ignore_eos=True, logprobs=0)
    expected = load(prefix_cache=False).generate(prompts, sampling)
    drafting = load(draft="ngram", draft_tokens=6)
    found = drafting.generate(prompts, sampling)
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == other.logprobs
    assert drafting.stats["drafted_tokens"] > 0
