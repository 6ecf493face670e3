"""Whole encoders of odd shapes against the float64 reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference
import reference_encoder
from cases import BATCHES, POOLINGS, offsets
from models import SPEC_OPTIONS, Tensors, random_sequences, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session
from precisions import Precision

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads-of-26": {"hidden_size": 312, "num_heads": 12, "intermediate_size": 600},
    "heads-of-10": {"hidden_size": 30, "num_heads": 3},
    "heads-of-1": {"hidden_size": 7, "num_heads": 7},
    "one-head-of-64": {"hidden_size": 64, "num_heads": 1},
    "heads-wider-than-hidden": {"hidden_size": 32, "num_heads": 4, "head_dim": 24},
    "grouped-queries": {"hidden_size": 48, "num_heads": 6, "num_kv_heads": 2},
    "one-kv-head-of-10": {"hidden_size": 40, "num_heads": 4, "num_kv_heads": 1, "head_dim": 10},
    "odd-intermediate": {"intermediate_size": 83},
    "intermediate-of-1": {"intermediate_size": 1},
    "one-layer": {"num_layers": 1},
    "no-layers": {"num_layers": 0},
    "five-layers": {"num_layers": 5},
    "no-types": {"type_vocab_size": None},
    "many-types": {"type_vocab_size": 7},
    "offset-2": {"positions": {"kind": "learned", "count": 302, "offset": 2}},
    "large-eps": {"norm": {"kind": "layer", "placement": "post", "eps": 0.1}},
    **{
        activation: {"ffn": {"kind": "plain", "activation": activation}}
        for activation in ("gelu_tanh", "relu", "silu", "tanh")
    },
    **{
        f"gated-{activation}": {
            "intermediate_size": 83,
            "ffn": {"kind": "gated", "activation": activation},
        }
        for activation in ("gelu", "gelu_tanh", "relu", "silu", "tanh")
    },
    "gated-of-1": {"intermediate_size": 1, "ffn": {"kind": "gated", "activation": "silu"}},
    **SPEC_OPTIONS,
}


def as_seen(tensors: Tensors, precision: Precision) -> Tensors:
    """Matrices as the device rounds them; vectors stay float32."""
    return {
        name: precision.round(values) if values.ndim > 1 else values
        for name, values in tensors.items()
    }


def check_hidden(actual: Any, expected: Any, precision: Precision) -> None:
    """Checks hidden states. float32: to 2e-5 for activations around 1. bfloat16 rounds between all
    operators, so whole rows are compared: their direction, and the size of the error."""
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    if precision.name == "float32":
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)
        return
    if expected.size:
        error = np.linalg.norm(actual - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert error.max() < 0.06
        assert error.mean() < 0.02


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_odd_shapes(
    changes: dict[str, Any], precision: Precision, device: str, tmp_path: Path
) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    write_model(tmp_path, spec, tensors)
    if device != "cpu" and spec["attention"].get("kind") == "compressed":
        with pytest.raises(RuntimeError, match="compressed convolutional attention"):
            Session.load(tmp_path, device, precision.name)
        return
    session = Session.load(tmp_path, device, precision.name, max_tokens=512, max_sequences=8)
    sequences = random_sequences([2, 130, 0, 1, 40])
    cu_seqlens = offsets([len(s) for s in sequences])
    ids = np.concatenate(sequences)
    classifier = spec["heads"].get("classifier")
    outputs = ["hidden", "embedding", "pooled"] + ["logits"] * (classifier is not None)
    result = session.run((ids, cu_seqlens), outputs=outputs)
    seen = as_seen(tensors, precision)
    hidden = reference_encoder.encoder(spec, seen, ids, cu_seqlens)
    check_hidden(result.hidden, hidden, precision)

    # Expected values come from the session's own hidden states, so that only the heads are
    # compared.
    embedding = reference.pool(result.hidden, cu_seqlens, "mean", normalize=True)
    np.testing.assert_allclose(result.embedding, embedding, rtol=1e-5, atol=1e-5)
    pooled = reference_encoder.pooler(seen, result.hidden, cu_seqlens)
    precision.check(result.pooled, pooled)
    if classifier is not None:
        assert session.labels == classifier["labels"]
        logits = reference_encoder.classifier(spec, seen, result.hidden, ids, cu_seqlens)
        precision.check(result.logits, logits, steps=2)
        alone = session.run((ids, cu_seqlens), outputs=["logits"])  # without what it is made of
        np.testing.assert_array_equal(alone.logits, result.logits)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_batches(lengths: list[int], precision: Precision, device: str, tiny_model: Path) -> None:
    spec = tiny_spec()
    session = Session.load(tiny_model, device, precision.name, max_tokens=512, max_sequences=16)
    random = np.random.default_rng(1)
    cu_seqlens = offsets(lengths)
    ids, type_ids = random.integers(0, 50, cu_seqlens[-1]), random.integers(0, 2, cu_seqlens[-1])
    position_ids = random.integers(0, 300, cu_seqlens[-1])
    seen = as_seen(random_tensors(spec), precision)
    for extra in ({}, {"type_ids": type_ids}, {"position_ids": position_ids}):
        result = session.run(PackedTokens(ids, cu_seqlens, **extra))
        expected = reference_encoder.encoder(spec, seen, ids, cu_seqlens, **extra)
        check_hidden(result.hidden, expected, precision)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings(pooling: str, normalize: bool, device: str, tmp_path: Path) -> None:
    spec = tiny_spec(embedding={"pooling": pooling, "normalize": normalize})
    session = Session.load(write_model(tmp_path, spec), device, max_tokens=64)
    result = session.run([[1, 2, 3], [], [4], [5] * 20], outputs=["hidden", "embedding"])
    expected = reference.pool(result.hidden, result.cu_seqlens, pooling, normalize)
    np.testing.assert_allclose(result.embedding, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_weights_stored_in_16_bits(stored: str, device: str, tmp_path: Path) -> None:
    """float16 and bfloat16 files give what their values as float32 give, bit for bit."""
    from packhorse_weights import Tensor
    from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
    from packhorse_weights.tensor import to_float32

    folder = write_model(tmp_path / "float32", tiny_spec())
    tensors = read_safetensors(folder / "model.safetensors")
    half = write_model(tmp_path / stored, tiny_spec())
    write_safetensors(half / "model.safetensors", tensors, dict.fromkeys(tensors, stored))
    stored_tensors = read_safetensors(half / "model.safetensors")
    assert {tensor.dtype for tensor in stored_tensors.values()} == {stored}
    wide = write_model(tmp_path / "wide", tiny_spec())
    write_safetensors(
        wide / "model.safetensors",
        {name: Tensor(to_float32(t), "float32") for name, t in stored_tensors.items()},
    )
    batch = random_sequences([5, 70])
    first, second = (
        packhorse.Session.load(path, device, max_tokens=128).run(batch).hidden
        for path in (half, wide)
    )
    assert first.tobytes() == second.tobytes()
    exact = packhorse.Session.load(folder, device, max_tokens=128).run(batch).hidden
    assert first.tobytes() != exact.tobytes()
