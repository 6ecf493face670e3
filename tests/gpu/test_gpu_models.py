"""Whole models, compared with transformers in float32, with float64, and with the CPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference
import reference_encoder
import torch
from cases import POOLINGS, offsets
from gpu_support import DEVICE, Precision
from models import SPEC_OPTIONS, random_sequences, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session
from transformers import BertConfig, BertModel

GOLDEN = Path(__file__).parents[1] / "golden"
OUTPUTS = ["hidden", "embedding", "pooled"]
LENGTHS = [17, 1, 128, 2, 100, 65, 31, 500, 64, 129]
CONFIGS: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    },
    "heads-of-26": {
        "hidden_size": 312,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "intermediate_size": 1200,
    },
    "heads-of-77": {
        "hidden_size": 770,
        "num_hidden_layers": 3,
        "num_attention_heads": 10,
        "intermediate_size": 1001,
    },
    "BERT-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}


@pytest.fixture(scope="module", params=CONFIGS)
def bert(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random model of transformers on the GPU, in float32, and its folder."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2000,
        max_position_embeddings=512,
        initializer_range=0.05,  # BERT has 0.02; here attention is far from uniform
        **CONFIGS[request.param],
    )
    model = BertModel(config).eval()
    folder = tmp_path_factory.mktemp("bert")
    model.save_pretrained(folder)
    return model.cuda(), folder


def run_torch(model: Any, batch: PackedTokens, dtype: torch.dtype) -> dict[str, Any]:
    """Returns the outputs of transformers in `dtype`, without padding."""
    assert batch.type_ids is not None
    lengths = np.diff(batch.cu_seqlens)
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded = {name: np.zeros(mask.shape, np.int64) for name in ("input_ids", "token_type_ids")}
    padded["input_ids"][mask] = batch.ids
    padded["token_type_ids"][mask] = batch.type_ids
    inputs = {name: torch.from_numpy(array).cuda() for name, array in padded.items()}
    inputs["attention_mask"] = torch.from_numpy(mask.astype(np.int64)).cuda()
    model = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    with torch.inference_mode():
        found = model(**inputs)
    return {
        "hidden": found.last_hidden_state.float().cpu().numpy()[mask],
        "pooled": found.pooler_output.float().cpu().numpy(),
    }


def test_transformers(kernels: str, precision: Precision, bert: Any) -> None:
    """The error is no larger than twice that of PyTorch in the same dtype."""
    model, folder = bert
    session = Session.load(folder, DEVICE, precision.name, max_tokens=2048, max_sequences=16)
    cu_seqlens = offsets(LENGTHS)
    random = np.random.default_rng(0)
    total = int(cu_seqlens[-1])
    batch = PackedTokens(
        random.integers(0, 2000, total), cu_seqlens, type_ids=random.integers(0, 2, total)
    )
    found = session.run(batch, outputs=OUTPUTS)
    exact = run_torch(model, batch, torch.float32)
    theirs = run_torch(model, batch, precision.dtype)
    for name in ("hidden", "pooled"):
        ours = np.abs(getattr(found, name) - exact[name])
        bound = 2 * np.abs(theirs[name] - exact[name]).max()
        assert ours.max() <= bound, f"{name}, {kernels}: {ours.max():.1e}, allowed {bound:.1e}"
    # Expected from the session's own hidden states, so that only the pooling is compared.
    embedding = reference.pool(found.hidden, cu_seqlens, **session.config["embedding"])
    np.testing.assert_allclose(found.embedding, embedding, rtol=1e-5, atol=1e-5)


def as_seen(tensors: Any, precision: Precision) -> dict[str, Any]:
    """Returns the weights as the device sees them: matrices are rounded, vectors stay float32."""
    return {
        name: precision.round(values).cpu().numpy() if values.ndim == 2 else values
        for name, values in tensors.items()
    }


def check_hidden(actual: Any, expected: Any, precision: Precision) -> None:
    """Compares whole rows by the norm of their error, since many roundings follow one another."""
    assert actual.shape == expected.shape
    if expected.size:
        error = np.linalg.norm(actual - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert error.max() < 30 * precision.epsilon
        assert error.mean() < 10 * precision.epsilon


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads-of-26": {"hidden_size": 312, "num_heads": 12, "intermediate_size": 600},
    "heads-of-1": {"hidden_size": 8, "num_heads": 8, "intermediate_size": 24},
    "one-head-of-64": {"hidden_size": 64, "num_heads": 1},
    "one-head-of-256": {"hidden_size": 256, "num_heads": 1},
    "heads-wider-than-hidden": {"hidden_size": 32, "num_heads": 4, "head_dim": 24},
    "grouped-queries": {"num_heads": 6, "num_kv_heads": 2},
    "one-kv-head-of-10": {"hidden_size": 40, "num_heads": 4, "num_kv_heads": 1, "head_dim": 10},
    "no-layers": {"num_layers": 0},
    "no-types": {"type_vocab_size": None},
    "odd-intermediate": {"intermediate_size": 83},
    "intermediate-of-1": {"intermediate_size": 1},
    "offset-2": {"positions": {"kind": "learned", "count": 302, "offset": 2}},
    **{
        activation: {"ffn": {"kind": "plain", "activation": activation}}
        for activation in ("gelu_tanh", "relu", "silu", "tanh")
    },
    **{
        f"gated-{activation}": {"ffn": {"kind": "gated", "activation": activation}}
        for activation in ("gelu", "silu", "relu")
    },
    "gated-of-75": {
        "intermediate_size": 75,
        "ffn": {"kind": "gated", "activation": "gelu", "up_bias": False, "down_bias": False},
    },
    "jina": {**SPEC_OPTIONS["alibi"], "ffn": {"kind": "gated", "activation": "gelu"}},
    **{
        name: changes
        for name, changes in SPEC_OPTIONS.items()
        if any(word in name for word in ("rope", "qk-norm", "window", "causal", "pre-norm"))
    },
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_shapes(
    kernels: str, precision: Precision, changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    session = Session.load(
        write_model(tmp_path, spec, tensors), DEVICE, precision.name, max_tokens=512
    )
    seen = as_seen(tensors, precision)
    for lengths in ([2, 130, 0, 1, 40], [1] * 9, [0, 0], []):
        sequences = random_sequences(lengths)
        cu_seqlens = offsets(lengths)
        ids = np.concatenate([np.zeros(0, np.int32), *sequences])
        result = session.run((ids, cu_seqlens), outputs=OUTPUTS)
        check_hidden(
            result.hidden, reference_encoder.encoder(spec, seen, ids, cu_seqlens), precision
        )
        # Expected from the session's own hidden states, so that only the heads are compared.
        embedding = reference.pool(result.hidden, cu_seqlens, "mean", normalize=True)
        np.testing.assert_allclose(result.embedding, embedding, rtol=1e-5, atol=1e-5)
        pooled = reference_encoder.pooler(seen, result.hidden, cu_seqlens)
        tolerance = 4 * precision.epsilon
        np.testing.assert_allclose(result.pooled, pooled, rtol=tolerance, atol=tolerance)


def test_table_of_embeddings(precision: Precision, tmp_path: Path) -> None:
    """A model without layers, positions and norm gives rows of its table, and pools them."""
    of_layers = ("num_heads", "intermediate_size", "norm", "attention", "ffn", "heads")
    spec = tiny_spec(
        **dict.fromkeys((*of_layers, "type_vocab_size")),
        num_layers=0,
        positions={"kind": "none"},
        max_seqlen=1 << 20,
    )
    tensors = random_tensors(spec)
    folder = write_model(tmp_path, spec, tensors)
    session = Session.load(folder, DEVICE, precision.name, max_tokens=512)
    table = as_seen(tensors, precision)["embeddings.word"]
    for lengths in ([2, 130, 0, 1, 40], [1] * 9, [0, 0], []):
        cu_seqlens = offsets(lengths)
        ids = np.concatenate([np.zeros(0, np.int32), *random_sequences(lengths)])
        result = session.run((ids, cu_seqlens), outputs=["hidden", "embedding"])
        np.testing.assert_allclose(result.hidden, table[ids], rtol=1e-6)
        embedding = reference.pool(result.hidden, cu_seqlens, "mean", normalize=True)
        np.testing.assert_allclose(result.embedding, embedding, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings(pooling: str, precision: Precision, tmp_path: Path) -> None:
    for normalize in (False, True):
        spec = tiny_spec(embedding={"pooling": pooling, "normalize": normalize})
        folder = write_model(tmp_path / str(normalize), spec)
        session = Session.load(folder, DEVICE, precision.name, max_tokens=64)
        result = session.run([[1, 2, 3], [], [4], [5] * 20], outputs=OUTPUTS)
        expected = reference.pool(result.hidden, result.cu_seqlens, pooling, normalize)
        np.testing.assert_allclose(result.embedding, expected, rtol=1e-5, atol=1e-5)


FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/golden.npz"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_golden(folder: Path, precision: Precision) -> None:
    """Folders as users have them, compared with stored outputs of transformers."""
    golden = np.load(folder / "golden.npz")
    batch = PackedTokens(golden["ids"], golden["cu_seqlens"], golden["type_ids"])
    session = Session.load(folder, DEVICE, precision.name, max_tokens=1024, kv_tokens=0)
    found = session.run(batch, outputs=["embedding"]).embedding
    expected = golden["embedding"]
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(1) / norms).min() >= 0.999


def test_cpu_and_gpu_agree(kernels: str, precision: Precision, tmp_path: Path) -> None:
    if "cpu" not in packhorse.available_devices():
        pytest.skip("this build has no CPU backend")
    spec = tiny_spec(hidden_size=256, num_heads=4, intermediate_size=512, num_layers=4)
    folder = write_model(tmp_path, spec)
    batch = random_sequences([3, 0, 290, 1, 64, 65, 130])
    on_cpu = Session.load(folder, "cpu", max_tokens=1024).run(batch, outputs=OUTPUTS)
    on_gpu = Session.load(folder, DEVICE, precision.name, max_tokens=1024)
    found = on_gpu.run(batch, outputs=OUTPUTS)
    check_hidden(found.hidden, on_cpu.hidden, precision)
    cosines = (found.embedding * on_cpu.embedding).sum(1)[[len(s) > 0 for s in batch]]
    assert cosines.min() > 1 - 400 * precision.epsilon**2
