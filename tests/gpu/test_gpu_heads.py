"""All heads but classifiers, compared with float64; results in host memory and on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_heads
import torch
from consumers import LENGTHS, load, on_device, variants
from gpu_support import DEVICE, Precision
from models import HEAD_OPTIONS, random_tensors, tiny_spec, write_model
from packhorse import PackedTokens, Session, pack
from test_gpu_models import GOLDEN, as_seen

OUTPUTS = ("embedding", "token_weights", "vectors", "sparse", "predictions")
# The golden models whose family and sizes the device can run.
FOLDERS = (
    "bert-own-decoder",
    "roberta-predictions",
    "distilbert-predictions",
    "electra-predictions",
    "albert-predictions",
    "mpnet-predictions",
    "modernbert-predictions",
    "modernbert-own-decoder",
    "nomic-bert-predictions",
    "gte-predictions",
    "bert-splade",
    "distilbert-splade",
    "distilbert-splade-logs",
    "bert-dense",
    "modernbert-residual",
    "bert-colbert",
    "modernbert-colbert",
    "bge-m3",
)


def sized(changes: dict[str, Any]) -> dict[str, Any]:
    has_head = not {"masked_lm", "lm"}.isdisjoint(changes.get("heads", {}))
    return {"max_predictions": 60} if has_head else {}


@pytest.mark.parametrize("changes", HEAD_OPTIONS.values(), ids=HEAD_OPTIONS)
def test_outputs(
    kernels: str, precision: Precision, changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    session = load(write_model(tmp_path, spec, tensors), precision.name, **sized(changes))
    seen = as_seen(tensors, precision)
    for lengths in LENGTHS:
        for batch in variants(lengths)[::2]:
            names = [name for name in session.outputs if name != "pooled"]
            rows = np.arange(0, batch.num_tokens, 6) if "predictions" in names else None
            there = session.run(batch, outputs=names, rows=rows)
            expected = reference_heads.outputs(spec, seen, there.hidden, batch.cu_seqlens, rows)
            tolerance = 16 * precision.epsilon
            for name, values in expected.items():
                found = getattr(there, name)
                # The rounding of large columns shows in small ones, in which they cancel out.
                size = max(1.0, float(np.sqrt(np.mean(values**2)))) if values.size else 1.0
                np.testing.assert_allclose(found, values, rtol=tolerance, atol=tolerance * size)
            with session.run(on_device(batch), outputs=names, rows=rows) as result:
                for name in names:
                    array = getattr(result, name)
                    assert array.shape == getattr(there, name).shape
                    assert array.numpy().tobytes() == getattr(there, name).tobytes(), name


@pytest.mark.parametrize("changes", HEAD_OPTIONS.values(), ids=HEAD_OPTIONS)
def test_refused_batches_have_no_outputs(changes: dict[str, Any], tmp_path: Path) -> None:
    session = load(write_model(tmp_path, tiny_spec(**changes)), **sized(changes))
    names = [name for name in session.outputs if name in OUTPUTS]
    rows = [0, 4] if "predictions" in names else None
    batch = pack([[1, 2, 3], [4, 5]])
    session.run(batch, outputs=names, rows=rows)
    batch.cu_seqlens[1] = -1
    with session.run(on_device(batch), outputs=names, rows=rows) as result:
        with pytest.raises(ValueError, match=r"cu_seqlens\[1\] = -1"):
            result.check()
        for name in names:
            assert not torch.from_dlpack(getattr(result, name)).any(), name


@pytest.mark.parametrize("changes", HEAD_OPTIONS.values(), ids=HEAD_OPTIONS)
def test_bits_do_not_depend_on_the_batch(
    kernels: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    session = load(write_model(tmp_path, tiny_spec(**changes)), max_tokens=2048)
    names = [name for name in session.outputs if name in OUTPUTS]
    rows = [np.random.default_rng(i).integers(0, 50, n) for i, n in enumerate((90, 250, 1, 33))]
    alone = [session.run([row], outputs=names) for row in rows]
    # Sequences reach over the chunks of rows whose logits are in memory at one time.
    for batch in (rows, rows[::-1], [*rows, *rows, *rows]):
        order = [next(i for i, row in enumerate(rows) if row is one) for one in batch]
        found = session.run(batch, outputs=names)
        for name in names:
            per_token = session.outputs[name][0]
            at = found.cu_seqlens[1:-1] if per_token else np.arange(1, len(batch))
            for part, i in zip(np.split(getattr(found, name), at), order, strict=True):
                assert part.tobytes() == getattr(alone[i], name).tobytes(), (name, i)


@pytest.mark.parametrize("name", FOLDERS)
def test_golden(name: str, precision: Precision) -> None:
    golden = np.load(GOLDEN / name / "golden.npz")
    batch = PackedTokens(golden["ids"], golden["cu_seqlens"], golden["type_ids"])
    rows = golden.get("prediction_rows")
    most = 0 if rows is None else rows.size
    session = Session.load(
        GOLDEN / name, DEVICE, precision.name, max_tokens=512, max_predictions=most
    )
    names = [one for one in OUTPUTS if one in golden and one in session.outputs]
    found = session.run(batch, outputs=names, rows=rows)
    for one in names:
        a, b = getattr(found, one), golden[one]
        assert a.shape == b.shape
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        assert error < 80 * precision.epsilon, f"{one}: {error:.1e}"
