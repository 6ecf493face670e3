"""Logits on the device, compared with float64 and with host memory, and of refused batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_encoder
import torch
from consumers import LENGTHS, load, on_device, variants
from gpu_support import Precision
from models import SPEC_OPTIONS, random_tensors, tiny_spec, write_model
from packhorse import pack
from test_gpu_models import as_seen

KINDS = {name: spec for name, spec in SPEC_OPTIONS.items() if name.startswith("classifier")}
OUTPUTS = ["hidden", "logits"]


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_logits(
    kernels: str, precision: Precision, changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = tiny_spec(**changes)
    tensors = random_tensors(spec)
    session = load(write_model(tmp_path, spec, tensors), precision.name)
    seen = as_seen(tensors, precision)
    for lengths in LENGTHS:
        for batch in variants(lengths):
            there = session.run(batch, outputs=OUTPUTS)
            logits = reference_encoder.classifier(
                spec, seen, there.hidden, batch.ids, batch.cu_seqlens
            )
            tolerance = 8 * precision.epsilon
            np.testing.assert_allclose(there.logits, logits, rtol=tolerance, atol=tolerance)
            with session.run(on_device(batch), outputs=["logits"]) as result:
                assert (result.logits.dtype, result.logits.shape) == ("float32", logits.shape)
                assert result.logits.numpy().tobytes() == there.logits.tobytes()


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_refused_batches_have_no_logits(changes: dict[str, Any], tmp_path: Path) -> None:
    session = load(write_model(tmp_path, tiny_spec(**changes)))
    batch = pack([[1, 2, 3], [4, 5]])
    assert session.run(batch, outputs=["logits"]).logits.all()
    batch.cu_seqlens[1] = -1
    with session.run(on_device(batch), outputs=["logits"]) as result:
        with pytest.raises(ValueError, match=r"cu_seqlens\[1\] = -1"):
            result.check()
        assert not torch.from_dlpack(result.logits).any()
