"""Hidden sizes that are no multiple of 8: padded on the device, and nowhere else to be seen."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import packhorse
import pytest
import reference
import reference_encoder
import reference_heads
import torch
from cases import POOLINGS, offsets
from consumers import LENGTHS, load, on_device, variants
from gpu_support import DEVICE, Precision
from models import HEAD_OPTIONS, SPEC_OPTIONS, random_sequences, random_tensors, tiny_spec
from models import write_model as write
from packhorse import PackedTokens, Session, pack
from test_gpu_models import check_hidden
from test_gpu_session import driver_calls

# Odd heads of the odd sizes too: 770 columns are 10 heads of 77.
SIZES = {30: 5, 36: 4, 100: 5, 770: 10}
EMPTY = [*LENGTHS, []]

ODD = {"hidden_size": 36, "head_dim": 12}
LAYERS = {name: {**ODD, **changes} for name, changes in SPEC_OPTIONS.items()}
HEADS: dict[str, dict[str, Any]] = {
    **{name: {**changes, **ODD} for name, changes in HEAD_OPTIONS.items()},
    # Layers that add an input of their own size, of one pooling and of several side by side.
    **{
        f"residual-of-{len(poolings)}": {
            **ODD,
            "embedding": {
                "pooling": poolings,
                "dense": [{"size": 36 * len(poolings), "residual": True}] * 2,
                "normalize": normalize,
            },
        }
        for poolings, normalize in ((["mean"], False), (["mean", "max", "last"], True))
    },
    "residual-vectors": {
        **ODD,
        "heads": {
            "vectors": {"dense": [{"size": 36, "residual": True}], "size": 36, "residual": True}
        },
    },
    "all": {
        **ODD,
        "heads": {
            "pooler": {"activation": "tanh"},
            "classifier": {"input": "pooler", "labels": ["a", "b", "c"]},
            "masked_lm": {"activation": "gelu", "sparse": True},
            "vectors": {"size": 11},
            "token_weights": True,
        },
    },
}


def as_seen(tensors: Any, precision: Precision) -> dict[str, Any]:
    """Matrices as the device rounds them, those of a convolution too; vectors stay float32."""
    return {
        name: precision.round(values).cpu().numpy() if values.ndim > 1 else values
        for name, values in tensors.items()
    }


def with_rows(session: Session, batch: PackedTokens) -> dict[str, Any]:
    """Arguments of a run that asks for everything."""
    names = list(session.outputs)
    rows = np.arange(0, batch.num_tokens, 6) if "predictions" in names else None
    return {"outputs": names, "rows": rows}


def check(found: Any, expected: Any, precision: Precision, steps: float = 16) -> None:
    """Large columns are rounded before they cancel out in small ones."""
    tolerance = steps * precision.epsilon
    size = max(1.0, float(np.sqrt(np.mean(expected**2)))) if expected.size else 1.0
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * size)


# --- the layers


@pytest.mark.parametrize("size", SIZES)
def test_sizes(kernels: str, precision: Precision, size: int, tmp_path: Path) -> None:
    changes = {"hidden_size": size, "num_heads": SIZES[size], "intermediate_size": 83}
    check_layers(precision, changes, tmp_path)


@pytest.mark.parametrize("changes", LAYERS.values(), ids=LAYERS)
def test_layers(
    kernels: str, precision: Precision, changes: dict[str, Any], tmp_path: Path
) -> None:
    check_layers(precision, changes, tmp_path)


def check_layers(precision: Precision, changes: dict[str, Any], folder: Path) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    session = load(write(folder, spec, tensors), precision.name)
    seen = as_seen(tensors, precision)
    # Models that know distances alone take no positions.
    count = 2 if spec["positions"]["kind"] == "none" and "rope" not in spec["attention"] else 4
    for lengths in EMPTY:
        for batch in variants(lengths)[:count]:
            found = session.run(batch, outputs=list(session.outputs))
            arrays = (batch.ids, batch.cu_seqlens, batch.type_ids, batch.position_ids)
            check_hidden(found.hidden, reference_encoder.encoder(spec, seen, *arrays), precision)
            # Expected values come from the session's own hidden states, so that only the heads are
            # compared.
            embedding = reference.pool(found.hidden, batch.cu_seqlens, "mean", normalize=True)
            np.testing.assert_allclose(found.embedding, embedding, rtol=1e-5, atol=1e-5)
            pooled = reference_encoder.pooler(seen, found.hidden, batch.cu_seqlens)
            check(found.pooled, pooled, precision, 4)
            if "logits" in session.outputs:
                logits = reference_encoder.classifier(
                    spec, seen, found.hidden, batch.ids, batch.cu_seqlens
                )
                check(found.logits, logits, precision, 8)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("size", [9, 12, 30, 255, 257, 770, 1023, 1025, 4097, 12_290, 32_772])
def test_norms(precision: Precision, kind: str, size: int, tmp_path: Path) -> None:
    """Rows of every spread over threads, in small and in large batches: the norm of embeddings, and
    one of rows that lie in memory. Their mean is far from 0, which padding would pull it to."""
    spec = tiny_spec(
        **dict.fromkeys(("type_vocab_size", "heads")),
        num_layers=0,
        hidden_size=size,
        num_heads=1,
        head_dim=8,
        intermediate_size=8,
        norm={"kind": kind, "placement": "pre", "eps": 1e-6},
    )
    tensors = random_tensors(spec)
    tensors["embeddings.word"] += np.float32(3)
    if "embeddings.norm.bias" in tensors:
        tensors["embeddings.norm.bias"] += np.float32(2)
    session = Session.load(
        write(tmp_path, spec, tensors), DEVICE, precision.name, max_tokens=4096, max_sequences=64
    )
    seen = as_seen(tensors, precision)
    many = [300] * 13
    for lengths in ([2, 130, 0, 1], many) if size < 4000 else ([2, 130, 0, 1], [250, 100]):
        ids = np.concatenate(random_sequences(lengths))
        cu_seqlens = offsets(lengths)
        found = session.run((ids, cu_seqlens)).hidden
        expected = reference_encoder.encoder(spec, seen, ids, cu_seqlens)
        check(found, expected, precision, 8)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_tables_of_embeddings(precision: Precision, pooling: str, tmp_path: Path) -> None:
    """No layers, no positions, no norm: rows of the table, and what they are pooled to."""
    of_layers = ("num_heads", "intermediate_size", "norm", "attention", "ffn", "heads")
    for normalize in (False, True):
        spec = tiny_spec(
            **dict.fromkeys((*of_layers, "type_vocab_size")),
            num_layers=0,
            hidden_size=30,
            positions={"kind": "none"},
            max_seqlen=1 << 20,
            embedding={"pooling": pooling, "normalize": normalize},
        )
        tensors = random_tensors(spec)
        session = load(write(tmp_path / str(normalize), spec, tensors), precision.name)
        table = as_seen(tensors, precision)["embeddings.word"]
        for lengths in EMPTY:
            batch = pack(random_sequences(lengths))
            found = session.run(batch, outputs=["hidden", "embedding"])
            np.testing.assert_allclose(found.hidden, table[batch.ids], rtol=1e-6)
            expected = reference.pool(found.hidden, batch.cu_seqlens, pooling, normalize)
            np.testing.assert_allclose(found.embedding, expected, rtol=1e-5, atol=1e-5)
            assert not found.embedding[np.diff(batch.cu_seqlens) == 0].any()


# --- the heads, in host memory and on the device


@pytest.mark.parametrize("changes", HEADS.values(), ids=HEADS)
def test_heads(kernels: str, precision: Precision, changes: dict[str, Any], tmp_path: Path) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    most = 0 if {"masked_lm", "lm"}.isdisjoint(spec.get("heads", {})) else 60
    session = load(write(tmp_path, spec, tensors), precision.name, max_predictions=most)
    seen = as_seen(tensors, precision)
    for lengths in EMPTY:
        for batch in variants(lengths)[::2]:
            asked = with_rows(session, batch)
            there = session.run(batch, **asked)
            expected = reference_heads.outputs(
                spec, seen, there.hidden, batch.cu_seqlens, asked["rows"]
            )
            for name, values in expected.items():
                check(getattr(there, name), values, precision)
            with session.run(on_device(batch), **asked) as result:
                for name in asked["outputs"]:
                    array, host = getattr(result, name), getattr(there, name)
                    shared = torch.from_dlpack(array)
                    assert array.shape == tuple(shared.shape) == host.shape
                    assert shared.is_contiguous()
                    assert array.numpy().tobytes() == host.tobytes(), name
                    assert shared.float().cpu().numpy().tobytes() == host.tobytes(), name
            # Alone: what other outputs leave behind in shared memory is of no account.
            for name in asked["outputs"]:
                rows = asked["rows"] if name == "predictions" else None
                with session.run(on_device(batch), outputs=[name], rows=rows) as result:
                    found = getattr(result, name).numpy()
                assert found.tobytes() == getattr(there, name).tobytes(), name


def test_refused_batches_have_no_outputs(tmp_path: Path) -> None:
    session = load(write(tmp_path, tiny_spec(**HEADS["all"])), max_predictions=4)
    batch = pack([[1, 2, 3], [4, 5]])
    asked = {"outputs": list(session.outputs), "rows": [0, 4]}
    expected = session.run(batch, **asked)
    batch.cu_seqlens[1] = -1
    with session.run(on_device(batch), **asked) as result:
        with pytest.raises(ValueError, match=r"cu_seqlens\[1\] = -1"):
            result.check()
        for name in asked["outputs"]:
            assert not torch.from_dlpack(getattr(result, name)).any(), name
    batch.cu_seqlens[1] = 3
    again = session.run(batch, **asked)
    for name in asked["outputs"]:
        assert getattr(again, name).tobytes() == getattr(expected, name).tobytes(), name


@pytest.mark.parametrize("size", SIZES)
def test_bits_do_not_depend_on_the_batch(
    kernels: str, precision: Precision, size: int, tmp_path: Path
) -> None:
    spec = tiny_spec(**{**HEADS["all"], "hidden_size": size, "num_heads": SIZES[size]})
    session = load(write(tmp_path, spec), precision.name, max_tokens=2048)
    names = list(session.outputs)
    rows = [np.random.default_rng(i).integers(0, 50, n) for i, n in enumerate((90, 250, 1, 33))]
    alone = [session.run([row], outputs=names) for row in rows]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3] * 3):
        found = session.run([rows[i] for i in order], outputs=names)
        for name in names:
            per_token = session.outputs[name][0]
            bounds = found.cu_seqlens if per_token else np.arange(len(order) + 1)
            for (begin, end), i in zip(pairwise(bounds), order, strict=True):
                part = getattr(found, name)[begin:end]
                assert part.tobytes() == getattr(alone[i], name).tobytes(), (name, i)


# --- memory


def test_the_plan_is_exact(tmp_path: Path) -> None:
    folder = write(tmp_path, tiny_spec(**HEADS["all"]))
    options: dict[str, Any] = {"max_tokens": 512, "max_sequences": 32, "max_predictions": 9}
    plan = packhorse.plan_memory(folder, DEVICE, "float16", **options)
    session = Session.load(folder, DEVICE, "float16", memory_limit=plan.total_bytes, **options)
    assert session.memory_plan.total_bytes == plan.total_bytes
    sizes = {buffer.name: buffer.bytes for buffer in session.memory_plan.arena.buffers}
    columns = math.ceil(36 / 8) * 8
    assert sizes["hidden"] >= 512 * columns * 2
    assert sizes["hidden"] < 512 * (columns + 1) * 2 + 512
    with pytest.raises(MemoryError, match="memory_limit"):
        Session.load(folder, DEVICE, "float16", memory_limit=plan.total_bytes - 1, **options)


def test_runs_do_not_allocate(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tiny_spec(**HEADS["all"]))
    sessions = []
    loading = driver_calls(
        lambda: sessions.append(load(folder, max_predictions=4)), tmp_path / "load.json"
    )
    if not loading["cudaMalloc"]:
        pytest.skip(f"the profiler does not see what a load calls: {dict(loading)}")
    (session,) = sessions
    batch = pack([[1, 2, 3], [], [4, 5]])
    there = on_device(batch)
    asked = {"outputs": list(session.outputs), "rows": [0, 4]}

    def work() -> None:
        session.run(batch, **asked)
        session.run(there, **asked).release()

    calls = driver_calls(work, tmp_path / "runs.json")
    memory = {name for name in calls if "Malloc" in name or "Free" in name or "Alloc" in name}
    assert not memory, dict(calls)
