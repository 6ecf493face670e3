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
import reference_convolve
from cases import offsets
from gpu_support import DEVICE
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


def make(lengths: list[int], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    columns = (HEADS + KV_HEADS) * HEAD_DIM
    cu_seqlens = offsets(lengths)

    def normal(scale: float, *shape: int) -> Any:
        return bfloat16(rng.normal(0, scale, shape))

    return {
        "latents": normal(1, cu_seqlens[-1], columns + KV_HEADS * HEAD_DIM),
        "cu_seqlens": cu_seqlens,
        "depthwise": (normal(0.7, columns, 2), normal(0.5, columns)),
        "grouped": (normal((2 * HEAD_DIM) ** -0.5, columns, HEAD_DIM, 2), normal(0.5, columns)),
        "temperature": rng.uniform(0.5, 2, KV_HEADS).astype(np.float32),
        "num_heads": HEADS,
        "frequencies": 50.0 ** -(np.arange(0, 64, 2) / 64),
        "first_values": normal(1, KV_HEADS * HEAD_DIM),
    }


def test_many_rows(kernels: str) -> None:
    """Every path of the kernels: few rows and many, in steps, with neighbours and alone."""
    lengths = [700, 1, 2, 33, 0, 260, 64, 31]
    given = make(lengths)
    on = {"device": DEVICE, "dtype": "bfloat16"}
    whole = ops.convolve_heads(**given, **on)
    expected = reference_convolve.convolve_heads(**given)
    error = np.linalg.norm(whole - expected) / np.linalg.norm(expected)
    assert error < 4e-3
    np.testing.assert_allclose(whole, expected, rtol=2**-6, atol=2**-5)
    for begin, end in zip(given["cu_seqlens"][:-1], given["cu_seqlens"][1:], strict=True):
        alone = given | {"latents": given["latents"][begin:end], "cu_seqlens": [0, end - begin]}
        np.testing.assert_array_equal(ops.convolve_heads(**alone, **on), whole[begin:end])


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
