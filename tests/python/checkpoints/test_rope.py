"""Rotations of configs in all the forms in which they are published, beside those of transformers 5
(tests/golden/make_rope_golden.py)."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from checkpoints import GOLDEN
from packhorse_weights.architectures import find_architecture
from packhorse_weights.config import Config

CASES: dict[str, Any] = json.loads((GOLDEN / "rope.json").read_text())
# Fields that transformers ignores with a warning.
IGNORED = {
    "mrope_section": "mrope_section",
    "default and others' fields": "factor",
    "linear finetuned": "finetuned",
    "dynamic trained length": "alpha, original_max_position_embeddings",
    "yarn attn_factor": "attn_factor",
    "yarn finetuned": "finetuned",
    "llama3 finetuned": "beta_fast, finetuned",
}


def spec_of(config: dict[str, Any]) -> dict[str, Any]:
    read = Config(config, "config.json")
    model_type, family = find_architecture(read)
    return family.spec(model_type, read)


def frequencies(spec: dict[str, Any], local: bool) -> list[float]:
    rope = spec["ropes"]["local"] if local else spec["attention"]["rope"]
    if "frequencies" in rope:
        return list(rope["frequencies"])
    dims = rope.get("dims", spec.get("head_dim", spec["hidden_size"] // spec["num_heads"]))
    exponents = np.arange(0, dims, 2) / dims
    return list(rope["theta"] ** -exponents / rope.get("factor", 1.0))


@pytest.mark.parametrize("name", CASES)
def test_same_as_transformers(name: str) -> None:
    case = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec = spec_of(case["config"])
    said = IGNORED.get(name)
    assert [str(one.message).split(": ", 2)[2] for one in caught] == (
        [] if said is None else [f"{said}: ignored, as transformers does"]
    )
    np.testing.assert_allclose(frequencies(spec, local=False), case["frequencies"], rtol=1e-6)
    scale = spec["attention"]["rope"].get("attention_factor", 1.0)
    assert scale == pytest.approx(case["scale"], rel=1e-12)
    if "local" in case:
        np.testing.assert_allclose(frequencies(spec, local=True), case["local"], rtol=1e-6)
