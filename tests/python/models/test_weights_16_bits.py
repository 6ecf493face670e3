"""Weights of 16 bits that are multiplied with float32 rows: results have the bits of a float32
session on the same numbers. Those are compared with other libraries in test_golden.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference
from checkpoints import GOLDEN
from generation_sessions import LLAMA, PAGE
from models import random_sequences, random_tensors, tiny_spec, write_model
from packhorse import Sampling, ops
from packhorse_weights import convert, inspect_checkpoint
from packhorse_weights.formats.safetensors import read_safetensors
from packhorse_weights.tensor import to_float32
from processor import widened_dtypes

ENCODERS = [
    "bert-predictions",
    "bert-splade",
    "bge-m3",
    "deberta-v2-convolution",
    "deberta-v3-sequence",
    "modernbert-reranker",
    "nomic-bert-sequence",
    "qwen3",
]
DECODERS = ["gpt2", "llama", "smollm", "zaya"]
LENGTHS = [3, 0, 70, 1, 33]
ROUND: dict[str, Callable[[Any], Any]] = {
    "bfloat16": reference.bfloat16,
    "float16": lambda x: np.asarray(x, np.float16).astype(np.float32),
}

pytestmark = pytest.mark.skipif(
    "cpu" not in packhorse.available_devices(), reason="for the CPU backend"
)


@pytest.fixture(params=widened_dtypes())
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


def weight_bytes(session: packhorse.Session) -> int:
    return session.memory_plan.weights.bytes


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str, dtype: Any, tmp_path: Path) -> None:
    folder = convert(GOLDEN / name, tmp_path / "model", dtype=dtype)
    heads = inspect_checkpoint(folder).spec.get("heads", {})
    masks = 5 if "masked_lm" in heads else 0
    options: dict[str, Any] = {"max_tokens": 128, "max_sequences": 8, "max_predictions": masks}
    narrow = packhorse.Session.load(folder, dtype=dtype, **options)
    wide = packhorse.Session.load(folder, dtype="float32", **options)
    assert narrow.dtype == dtype
    assert weight_bytes(narrow) < weight_bytes(wide)
    assert narrow.memory_plan.arena == wide.memory_plan.arena
    given: dict[str, Any] = {"outputs": list(wide.outputs)}
    if "predictions" in given["outputs"]:
        given["rows"] = np.array([0, 4, 50], np.int32)
    batch = random_sequences(LENGTHS, vocab_size=30)
    found, expected = narrow.run(batch, **given), wide.run(batch, **given)
    for output in given["outputs"]:
        np.testing.assert_array_equal(getattr(found, output), getattr(expected, output), output)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name: str, dtype: Any, tmp_path: Path) -> None:
    """Decoders keep what their files hold, where they are asked for no dtype."""
    folder = convert(GOLDEN / "generation" / name, tmp_path / "model", dtype=dtype)
    options: dict[str, Any] = {"kv_tokens": 16 * PAGE, "threads": 2, "max_sequences": 4}
    assert packhorse.plan_memory(folder, **options) == packhorse.plan_memory(
        folder, dtype=dtype, **options
    )
    prompts = random_sequences([5, 70, 1, 20], vocab_size=60)
    sampling = Sampling(max_new_tokens=20, ignore_eos=True, logprobs=2, prompt_logprobs=0)
    with (
        packhorse.Session.load(folder, **options) as narrow,
        packhorse.Session.load(folder, dtype="float32", **options) as wide,
    ):
        assert narrow.dtype == dtype
        assert weight_bytes(narrow) < weight_bytes(wide)
        assert isinstance(narrow, packhorse.GenerationSession)
        assert isinstance(wide, packhorse.GenerationSession)
        assert narrow.memory_plan.bytes_per_token == wide.memory_plan.bytes_per_token
        assert narrow.generate(prompts, sampling) == wide.generate(prompts, sampling)


def test_adapters(dtype: Any, tmp_path: Path) -> None:
    """The weights of an adapter are float32."""
    folder = convert(LLAMA, tmp_path / "model", dtype=dtype)
    sampling = Sampling(max_new_tokens=12, ignore_eos=True, logprobs=0, adapter="own")
    found = []
    for asked in (dtype, "float32"):
        with packhorse.Session.load(
            folder, dtype=asked, kv_tokens=4 * PAGE, max_adapters=1, threads=1
        ) as session:
            assert isinstance(session, packhorse.GenerationSession)
            session.add_adapter("own", GOLDEN / "adapters" / "llama")
            found.append(session.generate([[1, 2, 3], [7] * 30], sampling))
    assert found[0] == found[1]


def test_what_is_rounded(dtype: Any, tmp_path: Path) -> None:
    """Dense layers and the table of words; other tables, norms and biases are not."""
    spec = tiny_spec(num_layers=2)
    tensors = random_tensors(spec)
    rounded = {
        name: ROUND[dtype](tensor)
        if name == "embeddings.word" or (tensor.ndim == 2 and name.endswith(".weight"))
        else tensor
        for name, tensor in tensors.items()
    }
    assert "embeddings.position" in tensors
    batch = random_sequences(LENGTHS)
    narrow = packhorse.Session.load(write_model(tmp_path / "narrow", spec, tensors), dtype=dtype)
    wide = packhorse.Session.load(write_model(tmp_path / "wide", spec, rounded))
    exact = packhorse.Session.load(tmp_path / "narrow")
    found = narrow.run(batch).hidden
    np.testing.assert_array_equal(found, wide.run(batch).hidden)
    assert 0 < np.abs(found - exact.run(batch).hidden).max() < 0.1


@pytest.mark.parametrize(("k", "n"), [(1, 1), (16, 48), (129, 33), (577, 200), (1536, 64)])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_products(dtype: Any, k: int, n: int, activation: str, rng: np.random.Generator) -> None:
    """Tiles of every height, and more of them than convert a weight each for itself."""
    weight = rng.normal(0, k**-0.5, (n, k)).astype(np.float32)
    weight.flat[::7] *= np.float32(2**-12)  # some are subnormal in float16
    bias = rng.normal(0, 1, n).astype(np.float32)
    x = rng.normal(0, 1, (300, k)).astype(np.float32)
    for rows in (0, *range(1, 16), 28, 29, 43, 64, 65, 140, 141, 300):
        found = ops.gemm(x[:rows], weight, bias, activation=activation, dtype=dtype)
        expected = ops.gemm(x[:rows], ROUND[dtype](weight), bias, activation=activation)
        np.testing.assert_array_equal(found, expected)


def test_memory_is_that_of_16_bits(dtype: Any, tmp_path: Path) -> None:
    """Weights take what they take in the file, but for norms, biases and padding."""
    folder = convert(GOLDEN / "generation" / "llama", tmp_path / "model", dtype=dtype)
    plan = packhorse.plan_memory(folder, kv_tokens=PAGE)
    stored = read_safetensors(folder / "model.safetensors").values()
    in_file = sum(tensor.data.nbytes for tensor in stored)
    assert plan.weights.bytes < 1.6 * in_file  # the head that is tied is packed once more


def test_numbers_beyond_float16(tmp_path: Path) -> None:
    spec = tiny_spec()
    tensors = random_tensors(spec)
    tensors["layers.0.attention.output.weight"][0, 0] = 65536
    folder = write_model(tmp_path / "model", spec, tensors)
    with pytest.raises(ValueError, match=r"beyond float16's 65504; load it as bfloat16"):
        packhorse.Session.load(folder, dtype="float16")


def test_files_hold_the_numbers(dtype: Any, tmp_path: Path) -> None:
    """The rounding of these tests is that of the converter."""
    folder = convert(GOLDEN / "bert-gelu", tmp_path / "model", dtype=dtype)
    stored = read_safetensors(folder / "model.safetensors")
    source = read_safetensors(convert(GOLDEN / "bert-gelu", tmp_path / "own") / "model.safetensors")
    for name, tensor in stored.items():
        np.testing.assert_array_equal(to_float32(tensor), ROUND[dtype](source[name].data))
