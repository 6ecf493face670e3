"""A cache of keys and values in float8: what a model computes with it, what it takes of memory, and
what is refused. Bits are compared in test_pages_invariance.py and test_generation_models.py."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import packhorse
import pytest
from models import tiny_spec, write_model
from packhorse import Sampling
from packhorse_weights.checkpoint import inspect_checkpoint
from packhorse_weights.spec import blocks_of
from reference_encoder import encoder
from reference_heads import predictions
from reference_low_precision import Form, LowPrecision, Recipe

LLAMA = Path(__file__).parents[2] / "golden" / "generation" / "llama"


def logprobs_of_recipe(ids: list[int], recipe: Recipe) -> npt.NDArray[np.float64]:
    """Log-probabilities of each token but the first, in NumPy."""
    checkpoint = inspect_checkpoint(LLAMA)
    tensors = {
        ours: np.concatenate([part.ravel() for part in checkpoint.tensors[theirs].blocks()])
        .astype(np.float32)
        .reshape(checkpoint.tensors[theirs].shape)
        for ours, theirs in checkpoint.names.items()
    }
    hidden = encoder(
        checkpoint.spec,
        tensors,
        np.array(ids),
        np.array([0, len(ids)]),
        arithmetic=LowPrecision(recipe, tensors),
    )
    logits = predictions(checkpoint.spec, tensors, hidden.astype(np.float64)[:-1])
    total = np.log(np.exp(logits).sum(axis=1))
    found: npt.NDArray[np.float64] = logits[np.arange(len(ids) - 1), ids[1:]] - total
    return found


def test_a_model_with_rounded_keys_and_values() -> None:
    with np.load(LLAMA / "golden.npz") as golden:
        ids = golden["prompts"][-150:].tolist()
    found = {}
    for dtype in (None, "float8"):
        with packhorse.Session.load(LLAMA, kv_tokens=256, kv_cache_dtype=dtype) as session:
            scored = session.generate([ids], Sampling(max_new_tokens=0, prompt_logprobs=0))[0]
        found[dtype] = np.array(scored.prompt_logprobs.logprobs)
    head_dim = blocks_of(inspect_checkpoint(LLAMA).spec)[0][0]["head_dim"]
    expected = logprobs_of_recipe(ids, Recipe(cache=Form("e4m3", head_dim)))
    lost = np.abs(found["float8"] - found[None]).max()
    assert lost > 0.01
    assert np.abs(found["float8"] - expected).max() < 0.02 * lost
    assert np.abs(found[None] - logprobs_of_recipe(ids, Recipe())).max() < 0.02 * lost


def test_what_a_token_takes() -> None:
    layers = blocks_of(inspect_checkpoint(LLAMA).spec)
    attention = layers[0][0]
    given: dict[str, Any] = {"kv_tokens": 640}
    plan = packhorse.plan_memory(LLAMA, kv_cache_dtype="float8", **given)
    heads = len(layers) * attention["num_kv_heads"]
    head_dim = -(-attention["head_dim"] // 16) * 16
    assert plan.bytes_per_token == heads * 2 * (head_dim + 4)  # the scale is float32
    assert plan.kv_cache.bytes == pytest.approx(640 * plan.bytes_per_token, rel=0.02)
    assert packhorse.plan_memory(LLAMA, **given).bytes_per_token == heads * 2 * 4 * head_dim
    with packhorse.Session.load(LLAMA, kv_cache_dtype="float8", **given) as session:
        assert session.memory_plan == plan
        copied = pickle.loads(pickle.dumps(session))
    with copied:
        assert copied.memory_plan == plan


def test_refusals(tmp_path: Path) -> None:
    for name, message in (
        ("int8", "kv_cache_dtype is int8, expected float8"),
        ("bfloat16", "kv_cache_dtype is bfloat16, expected float8"),
        ("fp8", "'fp8'"),
    ):
        with pytest.raises(ValueError, match=message):
            packhorse.Session.load(LLAMA, kv_tokens=64, kv_cache_dtype=name)
    embeds = write_model(tmp_path, tiny_spec())
    for load in (packhorse.Session.load, packhorse.plan_memory):
        with pytest.raises(ValueError, match="kv_cache_dtype is 'float8', but this session gives"):
            load(embeds, kv_cache_dtype="float8")
