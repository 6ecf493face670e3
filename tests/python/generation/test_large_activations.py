"""T5 whose feed-forward blocks give numbers beyond the 65504 of float16, as trained ones do: with
float16 weights its results are right, since activations are float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import reference_text_to_text
from checkpoints import GOLDEN
from generation_sessions import PAGE, load
from packhorse import Sampling
from packhorse_weights import inspect_checkpoint
from packhorse_weights.formats.safetensors import read_safetensors, write_safetensors
from packhorse_weights.tensor import Tensor

# Numbers by which transformers' feed-forward blocks give up to 2.7e6 (t5) and 6.4e7 (t5-gated).
LARGEST = 3e4  # largest weight of outputs
INNER = 16  # factor of weights before them


def make_folder(to: Path, name: str) -> Path:
    """The golden model with larger outputs of feed-forward blocks, and all weights in float16."""
    folder = GOLDEN / "text_to_text" / name
    tensors = {}
    for key, tensor in read_safetensors(folder / "model.safetensors").items():
        data = tensor.data.astype(np.float32)
        if key.endswith(".wo.weight"):
            data *= LARGEST / np.abs(data).max()
        if ".DenseReluDense.wi" in key:
            data *= INNER
        tensors[key] = Tensor(data.astype(np.float16), "float16")
    to.mkdir()
    for file in ("config.json", "generation_config.json"):
        (to / file).write_text((folder / file).read_text())
    write_safetensors(to / "model.safetensors", tensors, dict.fromkeys(tensors, "float16"))
    return to


@pytest.mark.parametrize("name", ["t5", "t5-gated"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_float16_gives_no_infinities(tmp_path: Path, name: str, dtype: str) -> None:
    folder = make_folder(tmp_path / name, name)
    found = inspect_checkpoint(folder)
    tensors = {
        ours: found.tensors[theirs].data.astype(np.float64) for ours, theirs in found.names.items()
    }
    rng = np.random.default_rng(2)
    sources = [rng.integers(3, 98, n).astype(np.int32) for n in (1, 9, 70)]
    targets = [np.array([0, *rng.integers(3, 98, n)], np.int32) for n in (1, 5, 20)]
    with load(folder, dtype=dtype, kv_tokens=20 * PAGE) as session:
        count = session.vocab_size
        scoring = Sampling(max_new_tokens=1, logprobs=count)
        made = session.generate(targets, scoring, sources=sources)
        beams = Sampling(max_new_tokens=8, num_beams=3)
        texts = session.generate([[0]] * 3, beams, sources=sources)
    for one, source, target in zip(made, sources, targets, strict=True):
        logits = reference_text_to_text.logits(found.spec, tensors, source, target)[-1, :count]
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        row = dict(one.top_logprobs[0])
        told = np.array([row[i] for i in range(count)])
        assert np.isfinite(told).all()
        np.testing.assert_allclose(told, expected, atol=5e-3)
    assert all(np.isfinite(one.score) for one in texts)
